"""Published definitions of acceptance and speed, as data: name, source, formula in words, and what differs.

The formulas follow the tools' own code at the time of writing. `differs` compares with S_d, alpha_d and the
joint E[L] of this package.
"""

from __future__ import annotations

from dataclasses import dataclass

NEEDS_BASELINE = (
    "needs decoding timed without speculation: --timed FILE, which acceptlab bench speedup writes"
)


@dataclass(frozen=True)
class Definition:
    """One published quantity. `bonus` is yes, no, or - where it has no meaning."""

    metric: str
    source: str
    formula: str
    differs: str
    unit: str = "tokens"
    bonus: str = "yes"


_OURS = "acceptlab"

NODE_RATE = Definition(
    "node_rate",
    _OURS,
    "accepted nodes / tested nodes",
    "per node: on a tree the siblings after an accepted one are untested and count nowhere",
    "share",
    "no",
)
PATH_RATE = Definition(
    "path_rate",
    _OURS,
    "accepted tokens / depth of the drafted tree, summed over drafted steps",
    "per path: the share of the longest possible path; equals LayerSkip's rate on chains",
    "share",
    "no",
)
STEP_RATE = Definition(
    "step_rate",
    _OURS,
    "drafted steps that accept at least one token / drafted steps",
    "per step: this is S_1",
    "share",
    "no",
)
EL_JOINT = Definition(
    "EL_joint",
    _OURS,
    "sum of S_d over depths, which is the mean accepted_len of drafted steps",
    "realised length under the rule; the reference for all others here",
    bonus="no",
)
EXPECTED = Definition(
    "expected_accepted_len",
    _OURS,
    "mean over drafted steps of the expectation of accepted_len under the rule, given the tree",
    "same expectation as EL_joint, with less variance at temperature above 0",
    bonus="no",
)
EMITTED = Definition(
    "emitted_per_step",
    _OURS,
    "emitted tokens / target passes, pooled",
    "steps without a draft count; cut at EOS and at the length limit",
)
SPEC_BENCH = Definition(
    "mean accepted tokens",
    "Spec-Bench",
    "mean over all steps of the new tokens of a step, cut at EOS",
    "includes the bonus token, so about EL_joint + 1",
)
EAGLE_TAU = Definition(
    "tau",
    "EAGLE",
    "new tokens / target passes",
    "EAGLE takes a token from the prefill pass too; here every new token comes from a step",
)
VLLM_LENGTH = Definition(
    "mean acceptance length",
    "vLLM",
    "1 + accepted tokens / drafts, pooled",
    "exactly EL_joint + 1: steps without a draft do not count, and nothing is cut at the length limit",
)
SGLANG_POOLED = Definition(
    "accept_length",
    "SGLang, SpecForge",
    "completion tokens / verify passes, pooled over requests",
    "SGLang counts the prefill's token as a completion token too",
)
SGLANG_REQUESTS = Definition(
    "accept_length, mean of requests",
    "SGLang, SpecForge",
    "mean over requests of completion tokens / verify passes",
    "short texts weigh as much as long ones",
)
SEQUOIA = Definition(
    "tokens per target pass",
    "Sequoia",
    "accepted tokens and the bonus / target passes, pooled; no bonus where an EOS was accepted",
    "not cut at the length limit",
)
DEEPSPEC = Definition(
    "accept_len",
    "DeepSpec",
    "accepted tokens + 1 (no + 1 where an EOS was accepted) / proposals, pooled",
    "not cut at the length limit",
)
DFLASH = Definition(
    "acceptance length",
    "DFlash",
    "mean over requests of the mean of accepted tokens + 1",
    "the + 1 stays where an EOS was accepted; short texts weigh as much as long ones",
)
SPECDEC_BENCH = Definition(
    "average AL",
    "NVIDIA specdec_bench",
    "mean over requests of the mean number of tokens that a step returned",
    "short texts weigh as much as long ones; cut at EOS and at the length limit",
)
VLLM_RATE = Definition(
    "draft acceptance rate",
    "vLLM",
    "accepted tokens / drafted tokens, pooled",
    "drafted tokens that were never tested count as not accepted; on a tree at most one path can be accepted",
    "share",
    "no",
)
LAYERSKIP = Definition(
    "acceptance rate",
    "LayerSkip",
    "accepted tokens / drafted tokens, of a request",
    "pooled here; untested tokens are in the denominator",
    "share",
    "no",
)
LAYERSKIP_REQUESTS = Definition(
    "acceptance rate, mean of requests",
    "LayerSkip",
    "mean over requests of accepted tokens / drafted tokens",
    "what its benchmark reports; short texts weigh as much as long ones",
    "share",
    "no",
)
DYNAMICS_LENGTH = Definition(
    "E[L]",
    "arXiv 2604.14682",
    "sum over depths of the product of alpha(1)..alpha(d)",
    "EL_product: takes depths as independent and every node as tested on its own; see EL_gap of domains",
    bonus="no",
)
SPECULATORS_EAL = Definition(
    "expected accepted length",
    "Speculators (DFlash training)",
    "sum over positions of the product of marginal argmax accuracies",
    "accuracies along first children, on drafted prefixes; in training the prefix is the target's own text",
    bonus="no",
)
DSPARK = Definition(
    "accept_len",
    "Speculators (DSpark)",
    "1 + mean over blocks of the sum over positions of the product of overlaps",
    "overlaps of the sampling distributions along first children; products are taken block by block",
)
SPEED_UPS = (
    Definition(
        "speed-up",
        "Spec-Bench",
        "mean over questions of tokens/s / the same mean without speculation",
        "a ratio of means, prefill included",
        "ratio",
        "-",
    ),
    Definition(
        "speed-up",
        "DFlash",
        "mean time per output token without speculation / with it",
        "decoding only, prefill left out",
        "ratio",
        "-",
    ),
)

_AT_DEPTH = {
    "S_d": (
        "drafted steps that accept {d} or more tokens / drafted steps",
        "survival; their sum is EL_joint",
    ),
    "alpha_d": ("S_{d} / S_{before}", "conditional: some child is accepted, given that the parent was"),
    "node_rate_d": ("accepted nodes / tested nodes at depth {d}", "per node; alpha_d only on chains"),
}


def at_depth(name: str, depth: int) -> Definition:
    """A depth quantity of this package: S_d, alpha_d or node_rate_d."""
    formula, differs = _AT_DEPTH[name]
    text = formula.format(d=depth, before=depth - 1)
    return Definition(name.replace("_d", f"_{depth}"), _OURS, text, differs, "share", "no")


def vllm_position(position: int) -> Definition:
    """VLLM's acceptance at a draft position, counted from 0."""
    return Definition(
        f"acceptance rate at position {position}",
        "vLLM",
        f"drafts that accept {position + 1} or more tokens / drafts",
        f"survival S_{position + 1}, not a conditional rate",
        "share",
        "no",
    )


def dynamics_alpha(depth: int) -> Definition:
    """alpha(d) of arXiv 2604.14682."""
    return Definition(
        f"alpha({depth})",
        "arXiv 2604.14682",
        f"mean of min(1, target_prob/draft_prob) over all nodes at depth {depth}, tested or not",
        f"mean_ratio_{depth}: whatever the rule and the outcome",
        "share",
        "no",
    )
