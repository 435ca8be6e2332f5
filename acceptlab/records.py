"""The vocabulary of a run: record types, outcomes, schema version. Standard library only.

Every table is declared here as data, once. The Arrow schema (`store`), the DuckDB views (`queries`) and
`docs/schema.md` are generated from these declarations; nothing else may name a column's type.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCHEMA_VERSION = 1

TOP_N = 32
"""How many of the most probable tokens of each model a context stores."""

CERTIFICATE_RULES = (
    "greedy",
    "additive:0.1",
    "ratio:0.8",
    "top:2",
    "typical:eps=0.09,delta=0.3",
    "tree:2",
    "tree:4",
    "tree:8",
)
"""Rules whose certificate thresholds every context stores, in the order of `thresholds_forward/_reverse`."""


class Outcome(StrEnum):
    """What happened to a drafted node. Untested nodes never enter the denominator of an acceptance rate."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNTESTED = "untested"


class StopReason(StrEnum):
    """Why a text ended."""

    EOS = "eos"
    LENGTH = "length"
    CONTEXT = "context"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Column:
    """One column: `type` is an Arrow type name, `list<T>` for lists; `unit` is empty for plain numbers."""

    name: str
    type: str
    doc: str
    nullable: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """One table of a run: its grain in words, its unique key and its columns in order."""

    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column of that name; KeyError where there is none."""
        return {column.name: column for column in self.columns}[name]


_KEYS = (
    Column("run_id", "string", "Identifier of the run, unique by construction (time and random suffix)."),
    Column("domain", "string", "Domain of the prompt: code, math, logic or chat for the shipped prompts."),
    Column("prompt_id", "string", "Identifier of the prompt as its file gives it."),
)
_STEP = Column("step", "int32", "Draft-and-verify round of the prompt, from 0.")

_MEASURES = (
    Column("draft_entropy", "float32", "Entropy of the draft's model distribution.", unit="nats"),
    Column("target_entropy", "float32", "Entropy of the target's model distribution.", unit="nats"),
    Column("overlap", "float32", "Sum over the vocabulary of min(target, draft), sampling distributions."),
    Column(
        "kl_target_draft",
        "float32",
        "KL(target || draft), model distributions; may be infinite.",
        unit="nats",
    ),
    Column(
        "kl_draft_target",
        "float32",
        "KL(draft || target), model distributions; may be infinite.",
        unit="nats",
    ),
    Column(
        "target_margin",
        "float32",
        "Largest minus second largest probability of the target, model distribution.",
    ),
    Column(
        "draft_margin",
        "float32",
        "Largest minus second largest probability of the draft, model distribution.",
    ),
    Column("target_top_prob", "float32", "Largest probability of the target, model distribution."),
    Column("draft_top_prob", "float32", "Largest probability of the draft, model distribution."),
)
MEASURES = tuple(column.name for column in _MEASURES)
"""Measures of a context that its drafted children repeat, so that the nodes table stands alone."""

NODES = Table(
    "nodes",
    "one row per drafted node",
    ("prompt_id", "step", "node"),
    (
        *_KEYS,
        _STEP,
        Column("node", "int16", "Index of the node in its tree, from 0, parents before children."),
        Column("parent", "int16", "Node index of the parent; -1 is the root."),
        Column("depth", "int16", "Distance from the root; a child of the root has depth 1."),
        Column("child_rank", "int16", "Order in which the rule tries the siblings, from 0."),
        Column("position", "int32", "Position of the token in the text, from 0.", unit="tokens"),
        Column("token_id", "int32", "The drafted token."),
        Column("draft_prob", "float32", "Its probability under the draft's sampling distribution."),
        Column("target_prob", "float32", "Its probability under the target's sampling distribution."),
        Column(
            "accept_ratio",
            "float32",
            "min(1, target_prob/draft_prob), whatever the outcome; null where draft_prob is 0.",
            nullable=True,
        ),
        Column(
            "draft_rank", "int32", "Rank in the draft's model distribution, 0 the argmax; ties by lower id."
        ),
        Column(
            "target_rank", "int32", "Rank in the target's model distribution, 0 the argmax; ties by lower id."
        ),
        Column("is_target_argmax", "bool", "Whether the token is the target's argmax; known for every node."),
        Column(
            "path_draft_prob", "float32", "Product of draft_prob from the root's child down to this node."
        ),
        Column("test_prob", "float32", "Probability that the rule tests the node, given the drafted tree."),
        Column(
            "accept_prob",
            "float32",
            "Probability that the rule accepts the node once it tests it; null where test_prob is 0.",
            nullable=True,
        ),
        Column("outcome", "string", "accepted, rejected or untested (see Outcome)."),
        *_MEASURES,
    ),
)

CONTEXTS = Table(
    "contexts",
    "one row per context (the root or a node) in which both next-token distributions are known",
    ("prompt_id", "step", "node"),
    (
        *_KEYS,
        _STEP,
        Column("node", "int16", "Node whose next-token distributions these are; -1 is the root."),
        Column("depth", "int16", "Depth of that node; 0 is the root."),
        Column(
            "position", "int32", "Position of the context's last token in the text, from 0.", unit="tokens"
        ),
        *_MEASURES,
        Column("renyi_half", "float32", "Renyi divergence of order 1/2, model distributions.", unit="nats"),
        Column("target_argmax", "int32", "The target's argmax; the lowest id among exact ties."),
        Column("draft_argmax", "int32", "The draft's argmax; the lowest id among exact ties."),
        Column(
            "target_token_ids",
            "list<int32>",
            f"The target's {TOP_N} most probable tokens, most probable first.",
        ),
        Column(
            "target_probs",
            "list<float32>",
            "Their model probabilities, rounded down to multiples of 2^-13, below 2^-8 to 6 significant bits.",
        ),
        Column(
            "draft_token_ids",
            "list<int32>",
            f"The draft's {TOP_N} most probable tokens, most probable first.",
        ),
        Column(
            "draft_probs",
            "list<float32>",
            "Their model probabilities, rounded down to multiples of 2^-13, below 2^-8 to 6 significant bits.",
        ),
        Column(
            "thresholds_forward",
            "list<float32>",
            "Exact certificate thresholds on KL(target || draft), one per rule of CERTIFICATE_RULES, rounded down "
            "to 15 significant bits.",
            unit="nats",
        ),
        Column(
            "thresholds_reverse",
            "list<float32>",
            "Exact certificate thresholds on KL(draft || target), one per rule of CERTIFICATE_RULES, rounded down "
            "to 15 significant bits.",
            unit="nats",
        ),
    ),
)

STEPS = Table(
    "steps",
    "one row per draft-and-verify step",
    ("prompt_id", "step"),
    (
        *_KEYS,
        _STEP,
        Column(
            "context_len",
            "int32",
            "Committed tokens before the step, prompt and root included.",
            unit="tokens",
        ),
        Column("n_nodes", "int16", "Drafted nodes."),
        Column("n_tested", "int16", "Nodes that the rule tested (accepted or rejected)."),
        Column("accepted_len", "int16", "Drafted tokens accepted, without the bonus token.", unit="tokens"),
        Column(
            "expected_accepted_len",
            "float64",
            "Expectation of accepted_len under the rule, given the drafted tree.",
            unit="tokens",
        ),
        Column(
            "emitted_len",
            "int16",
            "Tokens added to the text, bonus or correction included, cut at EOS and at the length limit.",
            unit="tokens",
        ),
        Column(
            "bonus_token_id",
            "int32",
            "The bonus or correction token; null where the text was cut before it.",
            nullable=True,
        ),
        Column(
            "stop_reason",
            "string",
            "Why the text ended with this step; null where it went on.",
            nullable=True,
        ),
        Column("draft_ms", "float32", "Time in draft passes and in choosing the nodes.", unit="ms"),
        Column("verify_ms", "float32", "Time in the target pass and in the rule.", unit="ms"),
        Column("record_ms", "float32", "Time in computing the measures and rows.", unit="ms"),
        Column("other_ms", "float32", "The rest of the step: cache upkeep and bookkeeping.", unit="ms"),
    ),
)

PROMPTS = Table(
    "prompts",
    "one row per prompt, skipped ones included",
    ("prompt_id",),
    (
        *_KEYS,
        Column("source", "string", "Where the prompt came from: a shipped set or a file name."),
        Column("prompt_sha256", "string", "SHA-256 of the prompt's text (UTF-8)."),
        Column(
            "n_prompt_tokens",
            "int32",
            "Tokens of the prompt with its template.",
            nullable=True,
            unit="tokens",
        ),
        Column("n_new_tokens", "int32", "Tokens generated, EOS included.", unit="tokens"),
        Column("output_token_ids", "list<int32>", "The generated tokens, EOS included."),
        Column("output_text", "string", "The generated text, special tokens removed."),
        Column("stop_reason", "string", "Why the text ended (see StopReason)."),
        Column("wall_ms", "float32", "From prefill to the last token, recording included.", unit="ms"),
        Column("skip_reason", "string", "Why the prompt was skipped; null where it ran.", nullable=True),
    ),
)

TABLES = (NODES, CONTEXTS, STEPS, PROMPTS)
TIMING_COLUMNS = frozenset({"draft_ms", "verify_ms", "record_ms", "other_ms", "wall_ms"})
"""Columns that differ between two runs of the same configuration."""
