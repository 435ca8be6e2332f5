"""Losslessness by enumeration: the product's audit, and whole decoding against laws computed from the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acceptlab.audit.controls import CONTROLS, RIGHT, emit, one_by_one
from acceptlab.audit.exact import (
    TablePair,
    context_masses,
    decoding_law,
    drafted_trees,
    sibling_lists,
    step_law,
)
from acceptlab.audit.suite import TOLERANCE, check_contexts, check_controls, check_texts, check_trees
from acceptlab.engine import Settings, decode
from acceptlab.errors import UsageError
from acceptlab.pairing import ProposalKind, proposal_for
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp
from acceptlab.toy import TableModel, blended, random_table
from acceptlab.tree import parse_tree
from acceptlab.verify.lossless import sampled_siblings
from tests import oracles
from tests.verify.helpers import WIDE, row


def table_pair(vocab: int, seed: int = 0, settings: Warp | None = None) -> TablePair:
    target = random_table(vocab, seed)
    draft = blended(target, random_table(vocab, seed + 1), 0.6)
    return TablePair(TableModel(target, vocab), TableModel(draft, vocab), settings or Warp())


def test_one_context_all_vocabularies_and_sibling_counts() -> None:
    checks = check_contexts()
    assert len(checks) == 3 * (2 + 3 + 4 + 5)
    assert max(check.worst for check in checks) <= TOLERANCE
    assert all(check.passed for check in checks)
    assert max(check.n_cases for check in checks) > 10_000


def test_one_step_all_branchings_to_depth_three() -> None:
    checks = check_trees()
    assert sum(check.n_cases for check in checks) == 3 * sum(v + v**2 + v**3 for v in (2, 3, 4, 5))
    assert max(check.worst for check in checks) <= TOLERANCE


def test_whole_texts_under_every_lossless_rule() -> None:
    checks = check_texts()
    assert {check.verifier for check in checks} == {"rejection", "rejection-iid", "onehot", "block"}
    assert max(check.worst for check in checks) <= TOLERANCE


def test_every_broken_verifier_is_seen() -> None:
    checks = check_controls()
    assert len(checks) == len(CONTROLS) >= 5
    # the smallest bias of these contexts is far above rounding, or the audit would prove nothing
    assert min(check.worst for check in checks) > 1e-2
    assert all(check.passed for check in checks)


@pytest.mark.parametrize(
    ("name", "branches", "vocab"),
    [
        ("rejection", [2, 1], 3),
        ("rejection", [1, 2], 3),
        ("rejection-iid", [2, 1], 3),
        ("onehot", [3, 2, 1], 4),
        ("onehot", [1, 1, 1], 3),
        ("block", [1, 1], 4),
        ("block", [1, 1, 1], 3),
    ],
)
@pytest.mark.parametrize("with_eos", [False, True])
def test_decoding_equals_the_oracle(name: str, branches: list[int], vocab: int, with_eos: bool) -> None:
    pair = table_pair(vocab, seed=3)
    tree = parse_tree("branches:" + ",".join(map(str, branches))).static
    assert tree is not None
    eos = frozenset({1}) if with_eos else frozenset()

    def target(text: oracles.Text) -> list[float]:
        return pair.target_row(text).tolist()

    def draft(text: oracles.Text) -> list[float]:
        return pair.draft_row(text).tolist()

    got = decoding_law(parse_rule(name), tree, pair, (2, 0), 3, eos_ids=eos)
    by_hand = oracles.decode_law(
        lambda text: oracles.step_law(name, target, draft, text, oracles.uniform_shape(branches), eos=eos),
        (2, 0),
        3,
        eos,
    )
    plain = oracles.plain_law(target, (2, 0), 3, eos)
    assert oracles.distance(got, by_hand) <= 1e-12
    assert oracles.distance(got, plain) <= 1e-12
    assert sum(got.values()) == pytest.approx(1.0, rel=1e-12)


def test_the_two_block_lengths() -> None:
    # target (1/3, 2/3), draft (2/3, 1/3) at every step: 10/9 token by token, 11/9 as a block
    target = TableModel(lambda text: np.array([1 / 3, 2 / 3]), 2)
    draft = TableModel(lambda text: np.array([2 / 3, 1 / 3]), 2)
    pair, tree = TablePair(target, draft), parse_tree("chain:2").static
    assert tree is not None
    for name, length in (("rejection", 10 / 9), ("block", 11 / 9)):
        rule, mean = parse_rule(name), 0.0
        for weight, drafted, probs in drafted_trees(rule, tree, pair, ()):
            for emitted, mass in step_law(rule, drafted, probs, frozenset()).items():
                mean += weight * mass * (len(emitted) - 1)
        assert mean == pytest.approx(length, rel=1e-7)  # the table passes through float32 logits


def test_a_truncated_draft_of_sixteen_tokens_stays_lossless() -> None:
    # the stored draft is the one after the warp: two tokens, and the target's own truncation
    pair = table_pair(16, settings=Warp(0.7, 2))
    for text in ((0, 0), (3, 5), (9, 1)):
        draft, target = pair.draft_row(text), pair.target_row(text)
        assert int((draft > 0).sum()) == 2
        assert float(draft.sum()) == pytest.approx(1.0, rel=1e-15)
        for verifier in RIGHT:
            law = context_masses(verifier, target, draft, 2).law
            assert np.abs(law - target.numpy()).max() <= 1e-12


def test_sibling_lists_are_a_distribution() -> None:
    draft = row([0.5, 0.0, 0.3, 0.2])[0]
    for kind, k, n in (
        (ProposalKind.WITHOUT_REPLACEMENT, 2, 6),
        (ProposalKind.WITHOUT_REPLACEMENT, 4, 6),
        (ProposalKind.WITH_REPLACEMENT, 4, 81),
        (ProposalKind.RANKED, 2, 1),
    ):
        weights, tokens = sibling_lists(kind, draft, k)
        assert len(weights) == n
        assert float(weights.sum()) == pytest.approx(1.0, rel=1e-14)
        assert 1 not in tokens


def test_the_parts_of_the_controls_are_the_right_verifier() -> None:
    tokens = torch.tensor([[0, 1, 2], [3, 1, 0], [2, 3, 1]])
    target, draft = row(WIDE[0]).expand(3, -1), row(WIDE[1]).expand(3, -1)
    parts = one_by_one(target, draft, tokens)
    whole = sampled_siblings(target, draft, tokens, replace=False)
    assert torch.allclose(parts[0], whole[0], rtol=1e-14)
    assert torch.allclose(parts[1], whole[1], rtol=1e-14)


@pytest.mark.parametrize("verifier", [*RIGHT, *CONTROLS], ids=lambda verifier: verifier.name)
def test_emitted_tokens_follow_the_exact_law_of_their_verifier(verifier: object) -> None:
    rng = np.random.default_rng(0)
    n, k = 20_000, verifier.n_siblings  # type: ignore[attr-defined]
    target, draft = (torch.tensor(probs, dtype=torch.float64) for probs in WIDE)
    draws = torch.from_numpy(rng.random((n, 2 * k + 1)))
    tokens = emit(verifier, target.expand(n, -1), draft.expand(n, -1), draws)  # type: ignore[arg-type]
    law = context_masses(verifier, target, draft, k).law  # type: ignore[arg-type]
    counts = np.bincount(tokens.numpy(), minlength=4)
    possible = law > 0
    assert counts[~possible].sum() == 0
    expected = n * law[possible]
    # chi-square, at most 3 degrees of freedom, 0.1%; the seed is fixed
    assert ((counts[possible] - expected) ** 2 / expected).sum() < 16.3


def test_emit_refuses_a_draft_with_too_few_tokens() -> None:
    with pytest.raises(UsageError, match="needs 2 tokens"):
        emit(RIGHT[0], row([0.5, 0.5]), row([1.0, 0.0]), torch.full((1, 5), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("rejection", "branches:2,2", Warp()),
        ("rejection-iid", "branches:3,1", Warp(0.7, 4)),
        ("onehot", "branches:2,2", Warp()),
        ("block", "chain:3", Warp(1.0, None, 0.9)),
    ],
)
def test_the_engine_writes_like_the_target(name: str, shape: str, settings: Warp) -> None:
    """Probability-integral transform of every token on its own prefix, and exact against sampled lengths."""
    pair = table_pair(6, seed=5, settings=settings)
    rule = parse_rule(name)
    options = Settings(
        tree=parse_tree(shape),
        rule=rule,
        proposal=proposal_for(rule),
        warp=settings,
        max_new_tokens=300,
        seed=1,
        record=False,
    )
    text, gaps = [0, 1], []
    for step in decode(pair.target, pair.draft, text, "toy", options):
        gaps.append(step.verdict.accepted_len - step.verdict.expected_accepted_len)
        text.extend(step.emitted)
    assert len(text) == 302
    rng = np.random.default_rng(0)
    values = []
    for i in range(2, len(text)):
        probs = pair.target_row(tuple(text[:i])).numpy()
        assert probs[text[i]] > 0
        values.append(probs[: text[i]].sum() + rng.random() * probs[text[i]])
    counts = np.histogram(values, 20, (0, 1))[0]
    chi_square = ((counts - 15) ** 2 / 15).sum()
    assert 7.6 < chi_square < 36.2  # 19 degrees of freedom, 1% on either side; seed fixed
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.15  # 1% of 299 pairs
    # exact minus sampled length is a sum of martingale differences
    assert abs(sum(gaps)) < 3 * np.sqrt(np.square(gaps).sum())
    assert np.std(gaps) > 0.1
