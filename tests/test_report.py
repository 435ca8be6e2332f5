"""The page: self-contained, escaped, and without a number that its tables do not have."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from acceptlab.analysis import ANALYSES, AnalysisTable
from acceptlab.cli import run as run_cli
from acceptlab.figures import draw
from acceptlab.report import (
    PAGE,
    REPORT_ANALYSES,
    Report,
    Section,
    load_table,
    render_page,
    save_table,
    standard_tables,
    write_report,
)
from acceptlab.report.cells import LONG_TABLE, MISSING, number, view_of
from acceptlab.report.facts import collect_command, duration
from acceptlab.report.page import prose
from acceptlab.report.pictures import darken, picture_of
from acceptlab.resampling import Resampling
from acceptlab.store import RunWriter, open_run
from tests.synthetic import make_run
from tests.synthetic_tables import skipped_prompts

QUICK = Resampling(n_resamples=200)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "synthetic"
    return make_run(folder, config={"draft_note": "the draft is a slow <stand-in>"})


@pytest.fixture(scope="module")
def tables(run_folder: Path) -> list[AnalysisTable]:
    return standard_tables([open_run(run_folder)], resampling=QUICK)


@pytest.fixture(scope="module")
def folder(run_folder: Path, tables: list[AnalysisTable], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written report."""
    folder = tmp_path_factory.mktemp("report")
    write_report(report_of(tables, run_folder), folder)
    return folder


def report_of(tables: Sequence[AnalysisTable], run_folder: Path, **options: Any) -> Report:
    return Report(
        title="A title",
        runs=[open_run(run_folder)],
        sections=[Section(table, table.name) for table in tables],
        command="acceptlab report RUN",
        **options,
    )


class Page(HTMLParser):
    """What the tests look at: every tag's attributes, the tables' exact values, and text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: dict[str, list[str]] = {}
        self.text = ""
        self._table = ""
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._is_script = tag in {"script", "style"}
        if tag == "table":
            self._table = found.get("data-table") or ""
        if tag == "td" and found.get("data-value"):
            self.cells.setdefault(self._table, []).append(str(found["data-value"]))

    def handle_data(self, data: str) -> None:
        if not self._is_script:
            self.text += data


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / PAGE).read_text(encoding="utf-8"))


def test_page_loads_nothing(folder: Path, page: Page) -> None:
    loading = {"src", "srcset", "data", "poster", "action", "background", "xlink:href"}
    for tag, attributes in page.tags:
        for name in loading & set(attributes):
            assert str(attributes[name]).startswith("data:"), (tag, name)
        if tag == "link":
            assert str(attributes["href"]).startswith("data:")
        if tag == "a":  # anchors and files beside the page, which load only when they are followed
            target = str(attributes["href"])
            assert target.startswith("#") or (folder / target).is_file(), target
    text = (folder / PAGE).read_text(encoding="utf-8")
    assert "@import" not in text
    assert "url(" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_figures_inside_load_nothing(page: Page) -> None:
    uris = [
        str(found.get("src") or found.get("srcset")) for tag, found in page.tags if tag in {"img", "source"}
    ]
    assert len(uris) == 2 * len(REPORT_ANALYSES)
    for uri in uris:
        svg = base64.b64decode(uri.partition(",")[2]).decode()
        assert "<svg" in svg
        assert not re.search(r'href="(?!#)', svg)
        assert "<script" not in svg


def test_every_number_of_the_tables_is_the_analysis_frames(page: Page, tables: list[AnalysisTable]) -> None:
    for table in tables:
        shown = sorted(float(word) for cell in page.cells[table.name] for word in cell.split())
        frame = table.frame
        # a bound without its other bound is not shown, so both come and go together
        columns = [pd.to_numeric(frame[name], errors="coerce") for name in frame.columns if name not in TEXTS]
        values = np.concatenate([column.to_numpy(dtype=np.float64, na_value=np.nan) for column in columns])
        expected = np.sort(values[~np.isnan(values)])
        assert np.array_equal(shown, expected), table.name  # exact: the page keeps every digit


TEXTS = {
    "domain",
    "method",
    "reason",
    "entropy",
    "outcome",
    "metric",
    "source",
    "unit",
    "bonus",
    "definition",
    "differs",
}


def test_headline_is_the_domains_table(page: Page, tables: list[AnalysisTable]) -> None:
    domains = next(table.frame for table in tables if table.name == "domains")
    shown = [str(found["value"]).split() for tag, found in page.tags if tag == "data"]
    expected = [
        [str(row[name]), str(row[f"{name}_lo"]), str(row[f"{name}_hi"])]
        for row in domains.to_dict("records")
        for name in ("acceptance", "EL_joint")
    ]
    assert shown == expected


def test_page_says_what_a_reader_must_know(page: Page) -> None:
    words = " ".join(page.text.split())
    assert "The draft is a slow <stand-in>." in words  # escaped: a browser shows it as written
    assert words.index("slow <stand-in>") < words.index("At a glance")
    for part in (
        "Configuration",
        "Machine",
        "Package versions",
        "Provenance",
        "wall time",
        "seed",
        "SHA-256",
    ):
        assert part in words, part
    assert "acceptlab report RUN" in words
    assert "kary:depth=3,branch=2" in words
    assert "accepted nodes / tested nodes" in words
    assert "48 prompts, 365 steps, 5,110 nodes" in words  # n stands in the captions


def test_every_column_is_explained(page: Page, tables: list[AnalysisTable]) -> None:
    words = " ".join(page.text.split())
    for table in tables:
        for name, meaning in table.columns.items():
            if name in view_names(table):
                assert meaning in words, name


def view_names(table: AnalysisTable) -> set[str]:
    return {header.name for header in view_of(table.frame, table.columns).headers}


def test_texts_are_escaped(tables: list[AnalysisTable], run_folder: Path, tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    writer = RunWriter.create(tmp_path / "run", {"config": {**open_run(run_folder).config, "pair": evil}})
    columns = skipped_prompts("code", 1)
    writer.write({"prompts": {**columns, "output_text": [evil]}})
    table = AnalysisTable(evil, evil, evil, pd.DataFrame({"domain": [evil], "x": [0.5]}), [evil], {"x": evil})
    report = Report(
        title=evil,
        runs=[open_run(tmp_path / "run")],
        sections=[Section(table, "evil")],
        command=evil,
        question=evil,
        prediction=evil,
        verdict=evil,
    )
    text = render_page(report, {})
    assert evil not in text
    assert sum(tag == "script" for tag, _ in Page(text).tags) == 1  # the page's own
    assert Page(text).text.count(evil) >= 8


def test_incomplete_run_is_named(tables: list[AnalysisTable], tmp_path: Path) -> None:
    make_run(tmp_path / "half", n_prompts=2, n_steps=2, complete=False)
    text = Page(render_page(report_of(tables, tmp_path / "half"), {})).text
    assert "Run half is incomplete: it holds 8 finished prompts" in " ".join(text.split())


def test_empty_group_is_no_zero(tmp_path: Path) -> None:
    make_run(tmp_path / "run", domains=("code", "chat"), n_prompts=2, n_steps=2)
    run = open_run(tmp_path / "run")
    table = ANALYSES["domains"]([run], resampling=QUICK)
    empty = dict.fromkeys(table.frame.select_dtypes("float64"), np.nan)
    frame = table.frame.assign(**{name: [value, *table.frame[name][1:]] for name, value in empty.items()})
    changed = AnalysisTable(table.name, table.title, table.caption, frame, table.notes, table.columns)
    view = view_of(frame, table.columns)
    assert [cell.text for cell in view.blocks[0].rows[0][1:4]] == [MISSING] * 3
    page = write_report(report_of([changed], tmp_path / "run"), tmp_path / "out")
    assert MISSING in page.read_text(encoding="utf-8")
    nothing = AnalysisTable("domains", "t", "c", table.frame.iloc[:0], [], table.columns)
    text = write_report(report_of([nothing], tmp_path / "run"), tmp_path / "none").read_text(encoding="utf-8")
    assert "The table has no rows." in text


def test_long_tables_open_at_the_pooled_group() -> None:
    frame = pd.DataFrame({"domain": ["code"] * 20 + ["all"] * 20, "x": np.arange(40) / 7})
    assert len(frame) > LONG_TABLE
    view = view_of(frame, {})
    assert [(block.label, block.is_open, len(block.rows)) for block in view.blocks] == [
        ("code", False, 20),
        ("all", True, 20),
    ]
    assert len(view_of(frame[:LONG_TABLE], {}).blocks) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.500"),
        (-0.0214, "−0.021"),
        (123456, "123,456"),
        (12.345, "12.35"),
        (1234.56, "1,234.6"),
        (4.2e-5, "4.2e−05"),
        (float("inf"), "∞"),
        (0.0, "0.000"),
    ],
)
def test_numbers_for_reading(value: float, text: str) -> None:
    assert number(value) == text


def test_saved_tables_come_back_unchanged(tables: list[AnalysisTable], tmp_path: Path) -> None:
    odd = AnalysisTable(
        "odd",
        "t",
        "c",
        pd.DataFrame({"x": [np.inf, -np.inf, np.nan, 1 / 3], "n": pd.array([1, None, 3, 4], dtype="Int64")}),
    )
    for table in [*tables, odd]:
        save_table(table, tmp_path, table.name, "print")
        back = load_table(tmp_path, table.name, "print")
        assert back is not None
        pd.testing.assert_frame_equal(back.frame, table.frame)  # every digit, every type
        assert (back.title, back.caption, back.notes, back.columns) == (
            table.title,
            table.caption,
            table.notes,
            table.columns,
        )
        assert load_table(tmp_path, table.name, "another") is None
    assert json.loads((tmp_path / "tables" / "odd.json").read_text())["rows"][0]["x"] == "inf"


def test_dark_figures_have_light_ink(tables: list[AnalysisTable]) -> None:
    table = next(table for table in tables if table.name == "depth-profile")
    figure = draw(table.name, table.frame)
    darken(figure)
    pooled = next(line for line in figure.axes[0].lines if line.get_gid() == "all")
    for colour in (pooled.get_color(), pooled.get_markerfacecolor(), figure.axes[0].title.get_color()):
        assert int(to_hex(colour)[1:3], 16) > 0xC0, colour
    picture = picture_of(table)
    assert picture is not None
    assert picture.dark_uri != picture.light_uri


def test_commands_are_spelled_out() -> None:
    request = {
        "domains": ["code", "math"],
        "limit": 3,
        "pair": None,
        "top_k": 0,
        "draft": "ngram:n=3",
        "seed": 0,
    }
    quiet = {"text": "lines", "skip_bad": False, "dtype": "auto"}
    assert collect_command({"request": {**request, **quiet}}) == (
        "acceptlab collect --domain code,math --limit 3 --draft ngram:n=3 --seed 0"
    )
    assert collect_command({"request": {"domains": ["all"], "skip_bad": True, "text": "blocks"}}) == (
        "acceptlab collect --domain all --skip-bad --text blocks"
    )
    assert collect_command({"command": "/a/b/acceptlab collect --limit 1"}) == "acceptlab collect --limit 1"


def test_durations_in_words() -> None:
    assert [duration(s) for s in (3.21, 252, 7260, None)] == ["3.2 s", "4 min 12 s", "2 h 1 min", "unknown"]


def test_command_writes_page_tables_and_figures(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "report",
        str(run_folder),
        "--output",
        str(tmp_path),
        "--analyses",
        "domains",
        "--title",
        "T & U",
    ]
    assert run_cli(arguments) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / PAGE)
    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "<h1>T &amp; U</h1>" in text
    assert "acceptlab report" in text
    for name in ("tables/domains.csv", "tables/domains.json", "figures/domains.svg", "figures/domains.png"):
        assert (tmp_path / name).stat().st_size > 500, name


def test_unknown_analysis_is_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["report", str(run_folder), "--analyses", "depths"]) == 2
    assert "unknown analysis 'depths'" in capsys.readouterr().err


def test_verdicts_are_shown_as_they_are_meant() -> None:
    text = prose(
        "First.\n\n- **Bold** claim of `code`\n  that goes on\n\n"
        "| a | b |\n|---|---|\n| 1 | <i> |\n\n![picture](x.png)\n"
    )
    tags = [tag for tag, _ in Page(text).tags]
    for tag in ("p", "ul", "li", "strong", "code", "table", "td"):
        assert tag in tags, tag
    assert "img" not in tags
    assert "i" not in tags
    assert "**" not in text
    assert "picture" not in text
