"""What must hold in every run, as SQL predicates over its tables. Declarations only; `check` evaluates them.

A predicate is true for a row that breaks the rule. The views `linked_nodes`, `linked_steps` and `linked_prompts`
put beside each row what it must agree with: its parent, elder siblings, context, step, nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from acceptlab.records import MEASURES, Outcome, StopReason

TOLERANCE = 1e-4
"""How far a stored float32 may be from the same number computed from other stored float32 values."""

_STEP_KEY = "run_id, prompt_id, step"

VIEWS = (
    f"""
    CREATE VIEW linked_nodes AS
    SELECT
        n.*, p.depth AS parent_depth, p.outcome AS parent_outcome, p.path_draft_prob AS parent_path,
        CASE WHEN n.parent < 0 THEN 1 ELSE p.test_prob * coalesce(p.accept_prob, 0) END AS parent_reach,
        lag(n.test_prob * (1 - coalesce(n.accept_prob, 0))) OVER siblings AS elder_passed_on,
        coalesce(bool_or(n.outcome = 'accepted') OVER (
            siblings ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS elder_accepted,
        s.context_len, s.stop_reason, s.step IS NULL AS lacks_step, c.node IS NOT NULL AS has_context,
        {", ".join(f"c.{name} AS context_{name}" for name in MEASURES)}
    FROM nodes AS n
    LEFT JOIN nodes AS p
        ON p.run_id = n.run_id AND p.prompt_id = n.prompt_id AND p.step = n.step AND p.node = n.parent
    LEFT JOIN steps AS s ON s.run_id = n.run_id AND s.prompt_id = n.prompt_id AND s.step = n.step
    LEFT JOIN contexts AS c
        ON c.run_id = n.run_id AND c.prompt_id = n.prompt_id AND c.step = n.step AND c.node = n.parent
    WINDOW siblings AS (PARTITION BY n.run_id, n.prompt_id, n.step, n.parent ORDER BY n.child_rank)
    """,
    f"""
    CREATE VIEW linked_steps AS
    SELECT
        s.*, coalesce(t.n, 0) AS found_nodes, coalesce(t.tested, 0) AS found_tested,
        coalesce(t.accepted, 0) AS found_accepted, coalesce(t.deepest, 0) AS deepest_accepted,
        coalesce(t.expected, 0) AS found_expected,
        row_number() OVER prompt - 1 AS due_step, lead(s.step) OVER prompt IS NULL AS is_last,
        lag(s.context_len + s.emitted_len) OVER prompt AS due_context_len
    FROM steps AS s
    LEFT JOIN (
        SELECT {_STEP_KEY}, count(*) AS n, count_if(outcome <> 'untested') AS tested,
            count_if(outcome = 'accepted') AS accepted, max(depth) FILTER (outcome = 'accepted') AS deepest,
            sum(test_prob::DOUBLE * coalesce(accept_prob, 0)) AS expected
        FROM nodes GROUP BY {_STEP_KEY}
    ) AS t USING ({_STEP_KEY})
    WINDOW prompt AS (PARTITION BY s.run_id, s.prompt_id ORDER BY s.step)
    """,
    """
    CREATE VIEW linked_prompts AS
    SELECT
        p.*, coalesce(t.emitted, 0) AS found_emitted, t.stop_reason AS last_stop_reason,
        coalesce(t.n, 0) AS found_steps
    FROM prompts AS p
    LEFT JOIN (
        SELECT run_id, prompt_id, sum(emitted_len) AS emitted, max_by(stop_reason, step) AS stop_reason, count(*) AS n
        FROM steps GROUP BY run_id, prompt_id
    ) AS t USING (run_id, prompt_id)
    """,
)


@dataclass(frozen=True)
class Invariant:
    """A rule that no row may break: `broken` is SQL over the linked view of `table`, `says` ends `rows where`."""

    table: str
    says: str
    broken: str


def _outside(names: tuple[str, ...], low: float, high: str) -> str:
    return " OR ".join(f"NOT ({name} BETWEEN {low} AND {high})" for name in names)


_UNIT = ("overlap", "target_margin", "draft_margin", "target_top_prob", "draft_top_prob")
_NODE_UNIT = (
    "draft_prob",
    "target_prob",
    "accept_ratio",
    "path_draft_prob",
    "test_prob",
    "accept_prob",
    *_UNIT,
)
_NATS = ("draft_entropy", "target_entropy", "kl_target_draft", "kl_draft_target")
_ONE = "1.000001"  # one float32 rounding above 1
_OUTCOMES = ", ".join(f"'{outcome}'" for outcome in Outcome)
_STOPS = ", ".join(f"'{reason}'" for reason in StopReason)

INVARIANTS = (
    Invariant("nodes", "a probability is outside 0 to 1", _outside(_NODE_UNIT, 0.0, _ONE)),
    Invariant("nodes", "an entropy or divergence is negative", _outside(_NATS, -1e-6, "'inf'::FLOAT")),
    Invariant("nodes", "the outcome is unknown", f"outcome NOT IN ({_OUTCOMES})"),
    Invariant("nodes", "the step is missing from steps", "lacks_step"),
    Invariant(
        "nodes",
        "the depth does not follow the parent's",
        "parent >= node OR (parent >= 0 AND parent_depth IS NULL) OR depth <> coalesce(parent_depth, 0) + 1",
    ),
    Invariant(
        "nodes",
        "the position is not the context's length less 1 plus depth",
        "position <> context_len - 1 + depth",
    ),
    Invariant(
        "nodes",
        "accept_ratio is not min(1, target_prob/draft_prob)",
        "draft_prob > 1e-30 AND (accept_ratio IS NULL"
        f" OR abs(accept_ratio - least(1, target_prob / draft_prob)) > {TOLERANCE})",
    ),
    Invariant(
        "nodes",
        "path_draft_prob is not the parent's times draft_prob",
        f"abs(path_draft_prob - coalesce(parent_path, 1) * draft_prob) > {TOLERANCE}",
    ),
    Invariant(
        "nodes",
        "test_prob does not follow from the parent and the elder siblings",  # it is 0 below an end-of-sequence token
        f"test_prob > 0 AND abs(test_prob - coalesce(elder_passed_on, parent_reach)) > {TOLERANCE}",
    ),
    Invariant("nodes", "test_prob is positive and accept_prob null", "test_prob > 0 AND accept_prob IS NULL"),
    Invariant(
        "nodes",
        "a node below one that was not accepted is not untested",
        "outcome <> 'untested' AND parent >= 0 AND parent_outcome IS DISTINCT FROM 'accepted'",
    ),
    Invariant(
        "nodes",
        "a node after an accepted sibling is not untested",
        "outcome <> 'untested' AND elder_accepted",
    ),
    Invariant(
        "nodes",
        "a node that was reached is untested",
        "outcome = 'untested' AND test_prob > 0 AND stop_reason IS NULL AND NOT elder_accepted "
        "AND (parent < 0 OR parent_outcome = 'accepted')",
    ),
    Invariant(
        "nodes",
        "the outcome has probability 0",
        "(outcome = 'accepted' AND accept_prob = 0) OR (outcome = 'rejected' AND accept_prob = 1)",
    ),
    Invariant(
        "nodes",
        "a measure differs from the parent's context",
        "has_context AND ("
        + " OR ".join(f"{name} IS DISTINCT FROM context_{name}" for name in MEASURES)
        + ")",
    ),
    Invariant("contexts", "a probability is outside 0 to 1", _outside(_UNIT, 0.0, _ONE)),
    Invariant(
        "contexts",
        "an entropy or divergence is negative",
        _outside((*_NATS, "renyi_half"), -1e-6, "'inf'::FLOAT"),
    ),
    Invariant(
        "contexts",
        "the argmax is not the first of the most probable tokens",
        "target_argmax <> target_token_ids[1] OR draft_argmax <> draft_token_ids[1]",
    ),
    Invariant(
        "contexts",
        "the most probable tokens are not in order",
        "target_probs <> list_reverse_sort(target_probs) OR draft_probs <> list_reverse_sort(draft_probs)",
    ),
    Invariant("steps", "n_nodes is not the number of nodes", "n_nodes <> found_nodes"),
    Invariant("steps", "n_tested is not the number of tested nodes", "n_tested <> found_tested"),
    Invariant("steps", "accepted_len is not the number of accepted nodes", "accepted_len <> found_accepted"),
    Invariant("steps", "the accepted nodes are not one path", "found_accepted <> deepest_accepted"),
    Invariant(
        "steps",
        "expected_accepted_len is not the sum of test_prob times accept_prob",
        f"abs(expected_accepted_len - found_expected) > {TOLERANCE} * (1 + found_nodes)",
    ),
    Invariant(
        "steps",
        "emitted_len is not accepted_len + 1 though the step was not cut",
        "(stop_reason IS NULL OR bonus_token_id IS NOT NULL) AND emitted_len <> accepted_len + 1",
    ),
    Invariant(
        "steps",
        "a cut step emitted more than it accepted",
        "bonus_token_id IS NULL AND emitted_len > accepted_len",
    ),
    Invariant(
        "steps",
        "the bonus token is missing though the text went on",
        "bonus_token_id IS NULL AND stop_reason IS NULL",
    ),
    Invariant("steps", "the steps of the prompt do not count from 0", "step <> due_step"),
    Invariant("steps", "context_len does not follow from the step before", "context_len <> due_context_len"),
    Invariant("steps", "the stop reason does not mark the last step", "is_last <> (stop_reason IS NOT NULL)"),
    Invariant("steps", "the stop reason is unknown", f"stop_reason NOT IN ({_STOPS})"),
    Invariant("prompts", "the stop reason is unknown", f"stop_reason NOT IN ({_STOPS})"),
    Invariant("prompts", "n_new_tokens is not the sum of emitted_len", "n_new_tokens <> found_emitted"),
    Invariant(
        "prompts",
        "n_new_tokens is not the length of output_token_ids",
        "n_new_tokens <> len(output_token_ids)",
    ),
    Invariant("prompts", "the stop reason is not that of the last step", "stop_reason <> last_stop_reason"),
    Invariant(
        "prompts",
        "a skipped prompt has steps or no reason",
        "(skip_reason IS NOT NULL) <> (stop_reason = 'skipped') OR (skip_reason IS NOT NULL AND found_steps > 0)",
    ),
)
