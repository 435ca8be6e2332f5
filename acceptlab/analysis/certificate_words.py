"""What the certificates table means, in words, and the published thresholds that stand beside ours. No computing."""

from __future__ import annotations

from acceptlab.analysis.base import N_DOCS
from acceptlab.analysis.certificate_sums import N_BINS

QUANTILES = {0.05: "p5", 0.25: "p25", 0.5: "median", 0.75: "p75", 0.95: "p95"}
"""Levels of the quantiles, and how columns call them."""

PAPER = {
    "greedy": (0.006, 0.559),
    "tree:2": (0.071, 0.962),
    "tree:4": (0.249, 1.456),
    "tree:8": (0.531, 2.038),
}
"""p5 and median of forward thresholds in arXiv 2606.30265, Qwen3-1.7B, as reading notes of the paper quote them."""

PAPER_NOTE = (
    "paper_p5, paper_median: arXiv 2606.30265 for Qwen3-1.7B over some 63,000 greedy steps on UltraChat, as public "
    "reading notes of the paper quote it (for Qwen3-4B: greedy 0.007 and 0.619, p5 of tree:8 0.663). Its relaxed rules "
    "have other parameters, so they stand here and not in the table: p5 of additive:0.3 0.102, of ratio:0.1 0.279, of "
    "its setting of typical 0.375. It had no draft, so there is no coverage to compare with"
)
SOUND_NOTE = (
    "certified means proved: every comparison takes the unfavourable end of what float32 and the lists' rounding leave "
    "open; n_undecided proposals could not be decided from the stored lists and count as neither accepted nor rejected"
)
NEVER_NOTE = (
    "an infinite threshold certifies every finite divergence, since the rule can reject nothing there; n_finite leaves "
    "those contexts out. An infinite divergence certifies nothing"
)

COLUMNS = {
    "rule": "what accepts the draft's argmax; tree:M asks for the target's argmax among the draft's M most probable "
    "tokens, so that greedy is tree:1",
    "direction": "forward is KL(target || draft), reverse KL(draft || target); model distributions, nats",
    "margin_bin": f"bin of the target's margin, {N_BINS} of equal width from 0; missing: all contexts",
    "coverage": "share of contexts whose divergence is below the exact threshold: the proposal must be accepted",
    "gain": "coverage less that of greedy in the same contexts and direction",
    "margin_coverage": "the coverage with the threshold that knows only the target's margin",
    "acceptance": "share of decided proposals that the rule does accept",
    "tightness": "certified over accepted proposals: 1 if divergence explained every acceptance",
    "margin_tightness": "margin-only certified over exactly certified proposals",
    "nearest_rejection": "least divergence over threshold among rejected proposals: 1 would be a rejection at the "
    "threshold, below 1 a violation",
    **{
        f"threshold_{name}": f"{100 * level:g}% quantile of exact thresholds (nats)"
        for level, name in QUANTILES.items()
    },
    "paper_p5": "5% quantile in arXiv 2606.30265, Qwen3-1.7B (nats)",
    "paper_median": "median there (nats)",
    "n_contexts": "contexts with both distributions known, the root or a node",
    "n_certified": "contexts certified by the exact threshold",
    "n_finite": "of these, by a finite one",
    "n_margin": "contexts certified by the margin-only threshold",
    "n_accepted": "accepted proposals",
    "n_rejected": "rejected proposals",
    "n_undecided": "proposals that stored numbers cannot decide",
    "n_violations": "certified and yet rejected; must be 0",
    **{name: N_DOCS[name] for name in ("n_prompts", "method", "reason")},
}
