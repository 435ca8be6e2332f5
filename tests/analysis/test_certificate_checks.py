"""What rounding may do to a certificate or an outcome: never make one. Against full distributions in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptlab.analysis import certificate_checks as checks
from acceptlab.analysis.base import open_sample
from acceptlab.queries.certificates import add_cluster_rows, certificate_contexts
from acceptlab.records import TOP_N
from acceptlab.rules import Rule, RuleKind
from acceptlab.store import open_run
from acceptlab.store.rounding import THRESHOLD_BITS, round_down
from acceptlab.theory.certificates import rejected_mask
from acceptlab.theory.criteria import VALUE_KINDS, acceptance_level
from acceptlab.theory.divergences import entropy
from acceptlab.theory.margins import margin_bound
from tests.real_contexts import RULES, Known, make_known

POSITIVE = st.floats(1e-9, 20.0)
NEAR = st.integers(-3, 3)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return make_known(tmp_path_factory.mktemp("checks") / "run", n_prompts=40, domains=("code",))


@pytest.fixture(scope="module")
def columns(known: Known) -> dict[str, np.ndarray]:
    """All contexts as stored, in the order of the known distributions."""
    with open_sample([open_run(known.folder)]) as sample:
        add_cluster_rows(sample.connection, sample.clusters.keys)
        parts = list(certificate_contexts(sample.connection, batch_rows=300))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # margins and divergences tell the contexts apart, whatever order DuckDB reads them in
    stored = np.float32(known.divergences["reverse"])
    key, wanted = whole["kl_draft_target"], np.argsort(np.argsort(stored, kind="stable"))
    return {name: values[np.argsort(key, kind="stable")][wanted] for name, values in whole.items()}


def truly_accepted(known: Known, rule: Rule) -> np.ndarray:
    proposal = known.draft.argmax(axis=1)
    rows = np.arange(len(proposal))
    if rule.kind is RuleKind.TREE:
        ranked = np.argsort(-known.draft, axis=1, kind="stable")[:, : rule.m]
        return np.asarray((ranked == known.target.argmax(axis=1)[:, None]).any(axis=1))
    return np.asarray(~rejected_mask(known.target, rule)[rows, proposal])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_outcomes_are_those_of_the_full_distributions(
    rule: Rule, known: Known, columns: dict[str, np.ndarray]
) -> None:
    truth, found = truly_accepted(known, rule), checks.proposal_outcomes(columns, rule)
    assert truth[found.accepted].all()
    assert not truth[found.rejected].any()
    assert found.accepted.sum() > 300
    assert found.rejected.sum() > 10
    undecided = ~(found.accepted | found.rejected)
    if rule.kind not in VALUE_KINDS:
        assert not undecided.any()
    rows = np.flatnonzero(undecided)
    proposal = known.draft.argmax(axis=1)[rows]
    place = (known.target[rows] > known.target[rows, proposal][:, None]).sum(axis=1)
    level = (
        acceptance_level(known.target[rows].max(axis=1), entropy(known.target[rows]), rule)
        if len(rows)
        else 0
    )
    gap = np.abs(known.target[rows, proposal] - level)
    # a stored probability is known to 2^-13, one outside of the list not at all
    assert ((gap < 2.0**-13 + 1e-6) | (place >= TOP_N)).all()


@pytest.mark.parametrize("direction", checks.DIRECTIONS)
@pytest.mark.parametrize("index", range(len(RULES)), ids=map(str, RULES))
def test_certified_contexts_are_certified_in_float64(
    index: int, direction: str, known: Known, columns: dict[str, np.ndarray]
) -> None:
    divergence, threshold = known.divergences[direction], known.thresholds[direction][:, index]
    found = checks.certified(columns, index, direction)
    assert (divergence[found] < threshold[found]).all()
    # stored thresholds are a part in 16,000 too low at most, and an infinite divergence certifies nothing
    assert found[(divergence < threshold * (1 - 1e-4) - 1e-11) & np.isfinite(divergence)].all()
    assert found.sum() > 50
    from_margin = checks.margin_certified(columns, checks.margin_thresholds(columns, RULES[index]), direction)
    assert (divergence[from_margin] < threshold[from_margin]).all()
    assert 10 < from_margin.sum() <= found.sum() + 1
    assert not (found & ~truly_accepted(known, RULES[index])).any()


def test_special_contexts(known: Known, columns: dict[str, np.ndarray]) -> None:
    greedy = {d: checks.certified(columns, 0, d) for d in checks.DIRECTIONS}
    assert greedy["forward"][0], "equal distributions are certified"
    assert not greedy["forward"][1], "equally probable tokens cannot be"
    assert known.thresholds["forward"][1, 0] == 0.0
    assert not greedy["forward"][2], "an infinite divergence certifies nothing"
    assert np.isinf(columns["kl_target_draft"][2])
    typical = [rule.kind for rule in RULES].index(RuleKind.TYPICAL)
    assert np.isinf(columns["thresholds_reverse"][3]).any(), "a sure target has infinite reverse thresholds"
    # a flat target of 40 tokens: no token is below 0.3 / 40
    assert np.isinf(columns["thresholds_forward"][4, typical])
    assert checks.certified(columns, typical, "forward")[4]
    near = checks.nearness(columns, 0, "forward")
    assert near[0] == 0.0
    assert np.isinf(near[2])


@given(POSITIVE, NEAR, NEAR, st.booleans())
def test_rounding_never_makes_a_certificate(threshold: float, steps: int, fine: int, is_exact: bool) -> None:
    """The true divergence is at the true threshold or just beside it; some thresholds are stored as they are."""
    stored = round_down(np.array([[threshold]]), np.float32, THRESHOLD_BITS)
    threshold = float(stored[0, 0]) if is_exact else threshold
    divergence = threshold * (1.0 + steps * 2.0**-24 + fine * 2.0**-52)
    columns = {
        "kl_target_draft": np.float32([divergence]),
        "thresholds_forward": stored,
    }
    if checks.certified(columns, 0, "forward")[0]:
        assert divergence < threshold


@given(st.one_of(st.floats(0.0, 1.0), st.floats(0.0999999, 0.1000001), st.floats(1 - 1e-6, 1.0)))
def test_margin_thresholds_are_below_those_of_the_true_margin(margin: float) -> None:
    columns = {"target_margin": np.float32([margin])}
    for rule in RULES:
        exact = margin_bound(np.array([margin]), rule)
        for found, bound in zip(checks.margin_thresholds(columns, rule), exact, strict=True):
            assert found[0] <= bound[0]
            # little is lost, but at the jump of additive and where a margin near 1 has no digits left
            if abs(margin - 0.1) > 1e-7 and 1e-3 < margin < 1 - 1e-4:
                assert found[0] == pytest.approx(bound[0], rel=1e-2)


@given(st.floats(0.0, 1.0), st.floats(0.01, 1.0), st.floats(0.0, 6.0))
def test_stored_levels_enclose_the_level(share: float, top: float, nats: float) -> None:
    """A proposal whose stored probability cannot tell is undecided; the others are on the right side."""
    prob = top * share
    columns = {
        "target_place": np.array([2]),
        "listed_prob": np.float32([_listed(prob)]),
        "last_prob": np.float32([0.0]),
        "target_top_prob": np.float32([top]),
        "target_entropy": np.float32([nats]),
    }
    for rule in RULES:
        if rule.kind in VALUE_KINDS:
            level = float(acceptance_level(np.array([top]), np.array([nats]), rule)[0])
            found = checks.proposal_outcomes(columns, rule)
            assert not (found.accepted[0] and prob < level)
            assert not (found.rejected[0] and prob >= level)


def _listed(prob: float) -> float:
    from acceptlab.store.rounding import round_down_probs

    return float(round_down_probs(np.array([prob]))[0])


def test_a_run_of_other_rules_is_refused(tmp_path: Path) -> None:
    from acceptlab.errors import RunError
    from tests import real_contexts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_contexts, "RULES", RULES[:3])
        known = make_known(tmp_path / "run", n_prompts=1, domains=("code",))
    with open_sample([open_run(known.folder)]) as sample:
        add_cluster_rows(sample.connection, sample.clusters.keys)
        with pytest.raises(RunError, match="stores 3 certificate thresholds and there are 8 rules"):
            list(certificate_contexts(sample.connection))
