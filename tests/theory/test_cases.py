"""Reference cases, copied as numbers: every certificate, bound, chain, weight and tree must come out as
listed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acceptlab.rules import parse_rule
from acceptlab.theory import chains, divergences, estimators
from acceptlab.theory.certificates import Certificate, Direction, Ties, certificate, certificate_for_mask
from acceptlab.theory.certificates import thresholds as all_thresholds
from acceptlab.theory.criteria import rejected_mask
from acceptlab.theory.enumeration import enumerate_chain, exact_survival
from acceptlab.theory.margins import gap_bound, margin_bound, typical_bound_numeric
from acceptlab.tree import Tree

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
RELATIVE = 1e-12  # the cases were computed in higher precision; ours are a few roundings away
ABSOLUTE = 1e-15  # where zero is expected


def of_kind(*kinds: str) -> Any:
    chosen = [case for case in CASES if case["kind"] in kinds]
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def number(value: Any) -> Any:
    return float("inf") if value == "inf" else value


def assert_close(actual: Any, expected: Any, relative: float = RELATIVE) -> None:
    wanted = np.array(number(expected), dtype=np.float64)
    found = np.asarray(actual, dtype=np.float64)
    assert found.shape == wanted.shape
    assert found[wanted == 0] == pytest.approx(0.0, abs=ABSOLUTE)
    assert found[wanted != 0] == pytest.approx(wanted[wanted != 0], rel=relative, abs=0.0)


def check_certificate(found: Certificate, expect: dict[str, Any], name: str) -> None:
    assert_close(found.threshold[0], expect[name])
    if expect.get("token_index") is not None:
        assert found.token_index[0] == expect["token_index"]
    if f"{name}_pool" in expect:
        assert np.flatnonzero(found.pool[0]).tolist() == expect[f"{name}_pool"]
        assert_close(found.level[0], expect[f"{name}_level"])
    draft = expect.get(f"{name}_draft")
    if draft is None:
        assert np.isinf(found.threshold[0])
        assert np.isnan(found.nearest_draft).all()
    else:
        assert_close(found.nearest_draft[0], draft)


@of_kind("certificate", "tree_certificate")
def test_certificates(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    probs = np.array([given["target_probs"]], dtype=np.float64)
    rule, ties = parse_rule(given["rule"]), Ties(given.get("ties", "identity"))
    if "rejected" in expect:
        assert rejected_mask(probs, rule, ties)[0].tolist() == expect["rejected"]
    fast = all_thresholds(probs, [rule], ties)
    for direction, quick in zip(Direction, fast, strict=True):
        check_certificate(certificate(probs, rule, direction, ties), expect, direction.value)
        assert_close(quick[0, 0], expect[direction.value])


@of_kind("certificate_mask")
def test_masks(case: dict[str, Any]) -> None:
    probs = np.array([case["input"]["target_probs"]])
    mask = np.array([case["input"]["rejected"]])
    for direction in Direction:
        assert_close(
            certificate_for_mask(probs, mask, direction).threshold[0], case["expect"][direction.value]
        )


@of_kind("margin_bound", "margin_bound_typical_1d")
def test_margin_bounds(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    is_numeric = case["kind"] == "margin_bound_typical_1d"
    bound = typical_bound_numeric if is_numeric else margin_bound
    # the one-dimensional minimum is stated to 1e-7
    tolerance = 1e-7 if is_numeric else RELATIVE
    for value, name in zip(bound(given["margin"], parse_rule(given["rule"])), Direction, strict=True):
        assert_close(value, expect[name.value], tolerance)


@of_kind("gap_bound")
def test_gap_bound(case: dict[str, Any]) -> None:
    for value, name in zip(gap_bound(case["input"]["p1"], case["input"]["pr"]), Direction, strict=True):
        assert_close(value, case["expect"][name.value])


@of_kind("divergences")
def test_divergences(case: dict[str, Any]) -> None:
    target, draft = (
        np.array(case["input"][name], dtype=np.float64) for name in ("target_probs", "draft_probs")
    )
    expect = case["expect"]
    for name in ("overlap", "kl_target_draft", "renyi_half", "total_variation"):
        assert_close(getattr(divergences, name)(target, draft), expect[name])
    assert_close(divergences.kl_draft_target(draft, target), expect["kl_target_draft"])
    lower, upper = divergences.overlap_bounds(divergences.renyi_half(target, draft))
    assert_close(lower, expect["overlap_lower"])
    assert_close(upper, expect["overlap_upper"])


@of_kind("eal_chain")
def test_chains(case: dict[str, Any]) -> None:
    expect = case["expect"]
    target, draft = (
        [np.array(table) for table in case["input"][name]] for name in ("target_tables", "draft_tables")
    )
    found = enumerate_chain(target, draft)
    shares = found.path_probs
    gap = chains.chain_gap(found.ratios, found.overlaps, weights=shares)
    path = chains.path_lens(found.ratios)
    branch = chains.branch_lens(found.ratios, found.overlaps)
    assert_close(exact_survival(target, draft), expect["survival"])
    assert_close(gap.survival, expect["survival"])
    assert_close(gap.joint_len, expect["joint_len"])
    assert_close(gap.product_len, expect["product_len"])
    assert_close(gap.mean_overlaps, expect["mean_overlaps"])
    assert_close(gap.covariances, expect["covariances"])
    assert_close(shares @ chains.wtv_lens(found.overlaps), expect["wtv_trajectory"])
    assert_close(shares @ path, expect["path_mean"])
    assert_close(shares @ branch, expect["branch_mean"])
    assert_close(shares @ (path - shares @ path) ** 2, expect["path_var"])
    assert_close(shares @ (branch - shares @ branch) ** 2, expect["branch_var"])
    possible = [entry for entry in expect["per_path"] if entry["target_prob"] > 0]
    assert found.tokens.tolist() == [entry["path"] for entry in possible]
    assert_close(shares, [entry["target_prob"] for entry in possible])
    assert_close(path, [entry["path_estimate"] for entry in possible])
    assert_close(branch, [entry["branch_estimate"] for entry in possible])


@of_kind("eal_greedy")
def test_greedy_expected_len(case: dict[str, Any]) -> None:
    assert_close(
        estimators.product_expected_len(np.array(case["input"]["draft_probs"])), case["expect"]["value"]
    )


@of_kind("position_weights")
def test_position_weights(case: dict[str, Any]) -> None:
    given = case["input"]
    mask = None if given["mask"] is None else np.array(given["mask"])
    assert_close(
        estimators.position_weights(np.array(given["alpha"]), given["rho"], mask), case["expect"]["w"]
    )


@of_kind("tree_expected_length")
def test_trees(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    parent_of = {child: int(node) for node, children in given["children"].items() for child in children}
    tree = Tree(tuple(parent_of[node] - 1 for node in sorted(parent_of)))
    accept = np.array([given["conditional_acceptance"][str(node)] for node in sorted(parent_of)])
    _, reach = estimators.tree_reach(tree, accept)
    assert_close(reach, [expect["reach"][str(node)] for node in sorted(parent_of)])
    assert_close(estimators.tree_expected_len(reach), expect["expected_length"])
    law = estimators.length_law(estimators.tree_survival(tree, reach))
    assert_close(law, [expect["length_law"].get(str(length), 0.0) for length in range(tree.depth + 1)])
