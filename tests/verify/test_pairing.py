"""Which proposals and trees a rule takes, and that the rest is refused with a remedy."""

from __future__ import annotations

import pytest

from acceptlab.errors import UsageError
from acceptlab.pairing import ProposalKind, check_pairing, proposal_for
from acceptlab.rules import parse_rule
from acceptlab.tree import TreeShape, parse_tree

DYNAMIC = TreeShape("dynamic:nodes=60,depth=7,topk=10", "dynamic", None)
OPT = TreeShape("opt:nodes=32,threshold=0.2", "opt", None)
RANKED_RULES = ("greedy", "additive:0.1", "ratio:0.8", "top:2", "typical:eps=0.09,delta=0.3", "onehot")
ALL_RULES = (*RANKED_RULES, "rejection", "rejection-iid", "block")


def test_every_rule_takes_its_own_proposal_on_a_chain() -> None:
    for name in ALL_RULES:
        rule = parse_rule(name)
        check_pairing(rule, parse_tree("chain:3"), proposal_for(rule))
    assert proposal_for(parse_rule("onehot")) is ProposalKind.RANKED
    assert proposal_for(parse_rule("rejection")) is ProposalKind.WITHOUT_REPLACEMENT
    assert proposal_for(parse_rule("rejection-iid")) is ProposalKind.WITH_REPLACEMENT
    assert proposal_for(parse_rule("block")) is ProposalKind.WITHOUT_REPLACEMENT


@pytest.mark.parametrize("tree", ["chain:4", "kary:depth=3,branch=2", "branches:4,2,1"])
@pytest.mark.parametrize("name", ["rejection", "rejection-iid", "onehot", "greedy", "top:2"])
def test_static_trees_fit_all_rules_but_block(name: str, tree: str) -> None:
    rule = parse_rule(name)
    assert check_pairing(rule, parse_tree(tree), proposal_for(rule)) is None


@pytest.mark.parametrize("shape", [DYNAMIC, OPT])
def test_reranked_trees_take_ranked_rules_only(shape: TreeShape) -> None:
    for name in RANKED_RULES:
        check_pairing(parse_rule(name), shape, ProposalKind.RANKED)
    for name in ("rejection", "rejection-iid"):
        rule = parse_rule(name)
        with pytest.raises(UsageError, match=r"bias.*use rule onehot"):
            check_pairing(rule, shape, proposal_for(rule))


@pytest.mark.parametrize("name", ["rejection", "rejection-iid", "block"])
@pytest.mark.parametrize("proposal", [ProposalKind.RANKED, ProposalKind.ARGMAX])
def test_deterministic_candidates_do_not_fit_a_ratio(name: str, proposal: ProposalKind) -> None:
    with pytest.raises(UsageError, match=r"sampled from the draft.*onehot"):
        check_pairing(parse_rule(name), parse_tree("chain:3"), proposal)


@pytest.mark.parametrize(
    ("name", "proposal"),
    [
        ("rejection", ProposalKind.WITH_REPLACEMENT),
        ("rejection-iid", ProposalKind.WITHOUT_REPLACEMENT),
        ("onehot", ProposalKind.WITHOUT_REPLACEMENT),
        ("greedy", ProposalKind.WITH_REPLACEMENT),
    ],
)
def test_the_other_way_of_sampling_is_refused(name: str, proposal: ProposalKind) -> None:
    with pytest.raises(UsageError, match=f"use --proposal {proposal_for(parse_rule(name))}"):
        check_pairing(parse_rule(name), parse_tree("branches:2,2"), proposal)


def test_greedy_serving_is_a_chain_of_argmaxes_under_onehot() -> None:
    assert check_pairing(parse_rule("onehot"), parse_tree("chain:5"), ProposalKind.ARGMAX) is None
    with pytest.raises(UsageError, match="chain:K"):
        check_pairing(parse_rule("onehot"), parse_tree("branches:2,1"), ProposalKind.ARGMAX)


def test_block_needs_a_chain_whatever_the_shape_is_called() -> None:
    rule = parse_rule("block")
    assert check_pairing(rule, parse_tree("kary:depth=3,branch=1"), ProposalKind.WITH_REPLACEMENT) is None
    for shape in (parse_tree("branches:2,1"), DYNAMIC):
        with pytest.raises(UsageError, match="for chains"):
            check_pairing(rule, shape, proposal_for(rule))


def test_certificate_rules_do_not_decode() -> None:
    with pytest.raises(UsageError, match="certificates only"):
        check_pairing(parse_rule("tree:4"), parse_tree("chain:3"), ProposalKind.RANKED)
