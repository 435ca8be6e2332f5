"""What a rule reads of the target, when it reads it, and that a leaner way of reading gives the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from acceptlab.errors import RunError, UsageError
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp, warp
from acceptlab.tree import Tree
from acceptlab.verify import Drafted, Target, read_target, verify
from acceptlab.verify.lossless import deterministic_siblings, sampled_siblings
from tests.verify.helpers import LOSSLESS, random_step

WARPS = (Warp(), Warp(0.7), Warp(1.0, 4), Warp(0.5, 0, 0.9))


def without_leaves(drafted: Drafted) -> Drafted:
    """The same step as the engine makes it: the draft has no distribution at the leaves."""
    inner = np.flatnonzero(drafted.tree.n_children)
    rows = np.full(drafted.tree.n_nodes + 1, -1, dtype=np.int64)
    rows[inner] = np.arange(len(inner))
    assert drafted.draft_probs is not None
    probs = drafted.draft_probs[torch.from_numpy(drafted.draft_rows[inner])]
    return replace(drafted, draft_rows=rows, draft_probs=probs)


@pytest.mark.parametrize("name", LOSSLESS)
def test_leaves_that_are_read_late_change_nothing(name: str) -> None:
    rule, n_late, n_followed = parse_rule(name), 0, 0
    for seed in range(60):
        step = random_step(name, seed, zeros=0.0)
        drafted, settings = without_leaves(step.drafted), WARPS[seed % 2]
        logits = torch.from_numpy(step.target).log().float()
        side = read_target(rule, drafted, logits, settings)
        assert side.probs is not None
        assert side.late is not None
        assert len(side.probs) == int((drafted.tree.n_children > 0).sum())
        asked: list[int] = []
        late = side.late

        def counted(context: int, asked: list[int] = asked, late: object = late) -> torch.Tensor:
            asked.append(context)
            return late(context)  # type: ignore[operator]

        lean = verify(rule, drafted, replace(side, late=counted), step.uniforms)
        full = verify(rule, drafted, Target(probs=warp(logits, settings)), step.uniforms)
        assert (lean.accepted, lean.next_token) == (full.accepted, full.next_token)
        for one, other in ((lean.accept_prob, full.accept_prob), (lean.test_prob, full.test_prob)):
            np.testing.assert_array_equal(one, other)
        # one leaf at most is ever read: the one where the accepted path ends
        ends_at_leaf = not drafted.tree.n_children[lean.accepted[-1] + 1 if lean.accepted else 0]
        assert asked == ([lean.accepted[-1] + 1] if ends_at_leaf else [])
        n_late += ends_at_leaf
        n_followed += not ends_at_leaf
    assert n_late > 0
    assert n_followed > 0


@pytest.mark.parametrize("settings", WARPS)
def test_distributions_come_in_the_order_asked_for(settings: Warp) -> None:
    logits = torch.randn((6, 9), generator=torch.Generator().manual_seed(0))
    drafted = Drafted(Tree((-1, 0, 0, 2, 2)), np.zeros(5, dtype=np.int64), np.array([0, 1, -1, 2, -1, -1]))
    side = read_target(parse_rule("onehot"), drafted, logits, settings)
    wanted = warp(logits, settings)
    for contexts in ([0, 1, 3], [3, 0], [0], [5], [2, 3, 5], [4, 4], list(range(6))):
        # a row of a smaller matrix is summed in the same order
        torch.testing.assert_close(side.probs_of(np.array(contexts)), wanted[contexts], rtol=1e-15, atol=0)
    view = side.probs_of(np.array([0, 1]))
    assert side.probs is not None
    assert view.data_ptr() == side.probs.data_ptr()
    assert not side.probs_of(np.array([], dtype=np.int64)).numel()
    with pytest.raises(UsageError, match="context 2 is missing"):
        replace(side, late=None).probs_of(np.array([2]))
    with pytest.raises(UsageError, match="not read"):
        Target().probs_of(np.array([0]))


def test_numpy_and_torch_find_the_same_argmax_and_ranks() -> None:
    rng = np.random.default_rng(0)
    # whole numbers from few: many ties, and exact in bfloat16, which NumPy does not know
    logits = torch.from_numpy(rng.integers(0, 4, (5, 30)).astype(np.float32))
    drafted = Drafted(Tree((-1, -1, 0, 1)), rng.integers(0, 30, 4), np.array([0, 1, 2, -1, -1]))
    plain = read_target(parse_rule("top:2"), drafted, logits, Warp())
    other = read_target(parse_rule("top:2"), drafted, logits.bfloat16(), Warp())
    assert plain.argmax is not None
    assert plain.node_rank is not None
    np.testing.assert_array_equal(plain.argmax, other.argmax)
    np.testing.assert_array_equal(plain.node_rank, other.node_rank)
    for row, values in enumerate(logits.tolist()):
        assert plain.argmax[row] == values.index(max(values))
    for node, row in enumerate(drafted.tree.parent_rows):
        values, token = logits[row].tolist(), int(drafted.token_ids[node])
        before = sum(v > values[token] or (v == values[token] and i < token) for i, v in enumerate(values))
        assert plain.node_rank[node] == before
    assert len(set(plain.node_rank.tolist())) > 2


def test_the_last_residual_is_made_only_where_it_is_wanted() -> None:
    probs = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(7), size=3))
    before = probs.clone()
    for width in (1, 2, 3):
        tokens = torch.tensor([[0, 3, 6][:width], [5, 1, 2][:width], [4, 6, 0][:width]])
        accepts, residual = deterministic_siblings(probs, tokens)
        lean, _ = deterministic_siblings(probs, tokens, final=False)
        assert torch.equal(accepts, lean)
        assert not residual.gather(1, tokens).any()
        kept = torch.ones_like(probs).scatter(1, tokens, 0.0)
        assert torch.equal(residual, before * kept)
        assert torch.equal(probs, before)


@pytest.mark.parametrize("replace_drawn", [True, False])
@pytest.mark.parametrize("final", [True, False])
def test_a_row_repeated_gives_what_copies_give(replace_drawn: bool, final: bool) -> None:
    rng = np.random.default_rng(3)
    target, draft = (torch.from_numpy(rng.dirichlet(np.full(9, 0.7))) for _ in range(2))
    target[4] = 0.0
    tokens = torch.from_numpy(np.stack([rng.permutation(9)[:3] for _ in range(12)]))
    repeated = target.expand(12, -1), draft.expand(12, -1)
    copies = tuple(probs.contiguous() for probs in repeated)
    for sides in ((repeated[0], copies[1]), (copies[0], repeated[1]), repeated):
        found = sampled_siblings(*sides, tokens, replace=replace_drawn, final=final)
        wanted = sampled_siblings(*copies, tokens, replace=replace_drawn, final=final)
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape
            assert torch.equal(one, other)
    equal = sampled_siblings(repeated[0], repeated[0], tokens, replace=replace_drawn)
    assert equal[0][:, 0][target[tokens[:, 0]] > 0].eq(1).all()  # nothing is left to reject for


def test_greedy_reads_a_leaf_only_where_the_path_ends() -> None:
    rng = np.random.default_rng(1)
    tree = Tree((-1, -1, 0, 0, 1))
    n_late = 0
    for _ in range(40):
        logits = torch.from_numpy(rng.integers(0, 3, (6, 3)).astype(np.float32))  # many ties
        drafted = Drafted(tree, rng.integers(0, 3, 5), np.array([0, 1, 2, -1, -1, -1]))
        side = read_target(parse_rule("greedy"), drafted, logits, Warp())
        best = np.array([row.index(max(row)) for row in logits.tolist()])
        assert side.argmax is not None
        assert side.argmax.tolist() == [*best[:3], -1, -1, -1]
        asked: list[int] = []
        late = side.late_argmax
        assert late is not None

        def counted(context: int, asked: list[int] = asked, late: object = late) -> int:
            asked.append(context)
            return late(context)  # type: ignore[operator]

        lean = verify(parse_rule("greedy"), drafted, replace(side, late_argmax=counted), np.zeros(6))
        full = verify(parse_rule("greedy"), drafted, Target(argmax=best), np.zeros(6))
        assert (lean.accepted, lean.next_token) == (full.accepted, full.next_token)
        last = lean.accepted[-1] + 1 if lean.accepted else 0
        assert asked == ([last] if last > 2 else [])
        n_late += last > 2
    assert 0 < n_late < 40


def test_an_infinite_logit_is_refused_where_it_is_read() -> None:
    drafted = Drafted(Tree((-1,)), np.array([1]), np.array([0, -1]))
    logits = torch.tensor([[0.0, 1.0], [0.0, torch.inf]])
    side = read_target(parse_rule("greedy"), drafted, logits, Warp())
    with pytest.raises(RunError, match="nan or infinite"):
        verify(parse_rule("greedy"), drafted, side, np.zeros(2))
    with pytest.raises(RunError, match="nan or infinite"):
        read_target(parse_rule("greedy"), drafted, logits.flip(0), Warp())
    rejected = replace(drafted, token_ids=np.array([0]))
    assert verify(parse_rule("greedy"), rejected, side, np.zeros(2)).next_token == 1
