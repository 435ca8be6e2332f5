"""docs/schema.md, generated from the record declarations: `python -m acceptlab.store.docs`.

Text out, nothing else. A test holds the committed file to what this prints.
"""

from __future__ import annotations

from pathlib import Path

from acceptlab.records import CERTIFICATE_RULES, SCHEMA_VERSION, TABLES, Outcome, StopReason, Table
from acceptlab.store.manifest import CONFIG_KEYS
from acceptlab.store.provenance import CHECKOUT
from acceptlab.store.rounding import MIN_BITS, STEP_BITS, THRESHOLD_BITS
from acceptlab.store.schema import DICTIONARY_COLUMNS, INFINITE_COLUMNS

SCHEMA_PAGE = Path("docs") / "schema.md"

_INTRODUCTION = """\
# Record schema, version {version}

Generated from `acceptlab/records.py` by `python -m acceptlab.store.docs`; do not edit.

A run is a folder: `manifest.json` and one folder of Parquet parts a table. Only parts that the manifest lists
belong to the run; a part holds whole prompts. Read it with `acceptlab.store.open_run`, or straight from the files:

```sql
SELECT domain, avg((outcome = 'accepted')::INT) FROM 'RUN/nodes/*.parquet' WHERE outcome <> 'untested' GROUP BY domain
```

- `run_id, domain, prompt_id` stand in every table. Keys are unique within a run id.
- Not-a-number is never stored: an undefined value is null. Columns marked *null* may be null; older parts have null
  in columns that were added later.
- Infinity is a value in {infinite}, nowhere else.
- Natural logarithms; entropies and divergences in nats.
- *Sampling distribution*: after temperature, top-k and top-p, the same on both models. *Model distribution*: softmax
  of the logits, untruncated.
- `outcome` is {outcomes}. Untested nodes never enter the denominator of an acceptance rate.
- `stop_reason` is {stops}.
- Floats are rounded to nearest, those in lists down: probabilities to multiples of 2^-{step_bits}, small ones to
  {prob_bits} significant bits (`acceptlab.store.prob_upper_bounds` gives the upper ends), thresholds to
  {threshold_bits}. The thresholds belong, in order, to the rules {rules}.
- Stored as dictionaries: {dictionaries}.
"""

_MANIFEST = """\
## manifest.json

| Key | Meaning |
|---|---|
| `schema_version` | Version of this schema. |
| `run_id` | Identifier in every row; of a merged run, the identifiers in the rows are those of `merged_from`. |
| `created`, `ended`, `wall_s` | UTC times of the first and the last write; seconds of writing sessions. |
| `complete` | Whether all prompts are there. |
| `config` | {config}, and what else the collector was told. |
| `models`, `tokenizer_sha256` | Identifiers and file hashes. |
| `eos_ids` | Tokens that end a text; missing or null where they are not known, as in older runs. |
| `packages`, `git_commit`, `git_dirty`, `machine` | Where the rows were made. |
| `command` | The command line. |
| `parts` | By table, every part: file, rows, bytes, sha256, level (how often joined), compression (level of zstd). |
| `merged_from` | Of a merged run: run_id, folder, created and config of every source. |
"""


def schema_page() -> str:
    """The whole page."""
    introduction = _INTRODUCTION.format(
        version=SCHEMA_VERSION,
        infinite=_names(sorted(INFINITE_COLUMNS)),
        outcomes=_names(list(Outcome)),
        stops=_names(list(StopReason)),
        step_bits=STEP_BITS,
        prob_bits=MIN_BITS + 1,
        threshold_bits=THRESHOLD_BITS + 1,
        rules=_names(list(CERTIFICATE_RULES)),
        dictionaries=_names(sorted(DICTIONARY_COLUMNS)),
    )
    sections = [introduction, *map(_section, TABLES), _MANIFEST.format(config=_names(list(CONFIG_KEYS)))]
    return "\n".join(sections)


def _section(table: Table) -> str:
    lines = [
        f"## {table.name}",
        "",
        f"{table.grain[0].upper()}{table.grain[1:]}. Key: {_names(list(table.key))}.",
        "",
        "| Column | Type | Unit | Meaning |",
        "|---|---|---|---|",
    ]
    for column in table.columns:
        kind = f"`{column.type}`" + (" *null*" if column.nullable else "")
        meaning = column.doc.replace("|", "\\|")
        lines.append(f"| `{column.name}` | {kind} | {column.unit} | {meaning} |")
    return "\n".join([*lines, ""])


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Write the page into the checkout."""
    (CHECKOUT / SCHEMA_PAGE).write_text(schema_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
