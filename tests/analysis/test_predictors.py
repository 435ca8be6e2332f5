"""Domain against depth: measures against their definitions, chance against enumeration, and known answers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from acceptlab import queries
from acceptlab.analysis.exchange import moments
from acceptlab.analysis.factors import (
    Cells,
    additive_logistic,
    deviance_share,
    explained_variance,
    mutual_information,
)
from acceptlab.analysis.predictors import predictors
from acceptlab.queries import labels
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Node, Step, write_run

FAST = Resampling(n_resamples=200)


class Nodes:
    """Random nodes with two factors and an outcome that follows both."""

    def __init__(self, seed: int = 0, binary: bool = True, n: int = 3000) -> None:
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.integers(0, 4, n), rng.choice(3, n, p=[0.5, 0.3, 0.2])
        self.b = np.where(self.a == 3, np.minimum(self.b, 1), self.b)  # an empty cell
        rate = 0.3 + 0.1 * self.a + 0.08 * self.b * (self.a % 2)
        self.y = (rng.random(n) < rate).astype(float) if binary else np.clip(rng.normal(rate, 0.3), 0, 1)

    def cells(self) -> Cells:
        n, total = np.zeros((2, 4, 3))
        np.add.at(n, (self.a, self.b), 1)
        np.add.at(total, (self.a, self.b), self.y)
        return Cells(n, total, np.float64((self.y**2).sum()))


def regression(y: np.ndarray, *factors: np.ndarray) -> float:
    """R^2 of the linear model with indicators of the factors."""
    columns = [np.ones(len(y)), *((f == level).astype(float) for f in factors for level in np.unique(f)[1:])]
    design = np.stack(columns, axis=1)
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


@pytest.mark.parametrize("binary", [True, False])
def test_explained_variance_is_that_of_linear_models(binary: bool) -> None:
    nodes = Nodes(binary=binary)
    first, second = regression(nodes.y, nodes.a), regression(nodes.y, nodes.b)
    both = regression(nodes.y, nodes.a, nodes.b)
    wanted = [first, second, first - second, both - second, both - first, both]
    # the ridge that guards against empty levels is 1e-9 of the nodes
    np.testing.assert_allclose(explained_variance(nodes.cells()), wanted, atol=1e-8)


def information(y: np.ndarray, factor: np.ndarray) -> float:
    total = 0.0
    for level in np.unique(factor):
        for value in (0.0, 1.0):
            joint = np.mean((factor == level) & (y == value))
            if joint:
                total += joint * np.log(joint / np.mean(factor == level) / np.mean(y == value))
    return float(total)


def test_mutual_information_follows_its_definition_and_the_chain_rule() -> None:
    nodes = Nodes()
    first, second = information(nodes.y, nodes.a), information(nodes.y, nodes.b)
    both = information(nodes.y, 3 * nodes.a + nodes.b)
    wanted = [first, second, first - second, both - second, both - first, both]
    np.testing.assert_allclose(mutual_information(nodes.cells()), wanted, atol=1e-12)
    by_level = sum(
        np.mean(nodes.b == level) * information(nodes.y[nodes.b == level], nodes.a[nodes.b == level])
        for level in range(3)
    )
    assert mutual_information(nodes.cells())[3] == pytest.approx(by_level, rel=1e-9)


def logistic(y: np.ndarray, *factors: np.ndarray) -> float:
    """Negative log likelihood of the logistic model, by a general optimiser over the nodes."""
    columns = [np.ones(len(y)), *((f == level).astype(float) for f in factors for level in np.unique(f)[1:])]
    design = np.stack(columns, axis=1)

    def loss(beta: np.ndarray) -> tuple[float, np.ndarray]:
        eta = design @ beta
        grad = design.T @ (1 / (1 + np.exp(-eta)) - y)
        return float((np.logaddexp(0, eta) - y * eta).sum()), grad

    found = minimize(loss, np.zeros(design.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-8})
    return float(found.fun)


def test_logistic_models_are_those_of_an_optimiser() -> None:
    nodes = Nodes()
    null = logistic(nodes.y)
    losses = [logistic(nodes.y, nodes.a), logistic(nodes.y, nodes.b), logistic(nodes.y, nodes.a, nodes.b)]
    assert additive_logistic(nodes.cells()) == pytest.approx(losses[2], rel=1e-9)
    first, second, both = (1 - loss / null for loss in losses)
    wanted = [first, second, first - second, both - second, both - first, both]
    np.testing.assert_allclose(deviance_share(nodes.cells()), wanted, atol=1e-8)


def test_many_tables_at_once_are_the_tables_one_by_one() -> None:
    made = [Nodes(seed).cells() for seed in range(5)]
    empty = Cells(made[0].n * 0, made[0].total * 0, np.float64(0))
    certain = Cells(made[0].n, made[0].n * (np.arange(4) > 1)[:, None], made[0].squares)  # separable
    tables = [*made, certain]
    stacked = Cells(
        np.stack([c.n for c in tables]),
        np.stack([c.total for c in tables]),
        np.stack([c.squares for c in tables]),
    )
    for measure in (explained_variance, mutual_information, deviance_share):
        one_by_one = np.stack([measure(cells) for cells in tables])
        # Newton's method stops all tables together
        np.testing.assert_allclose(measure(stacked), one_by_one, atol=1e-7)
        assert np.isnan(measure(empty)).all()
    assert deviance_share(certain)[0] == pytest.approx(1.0)
    assert deviance_share(certain)[5] == pytest.approx(1.0, abs=1e-6)


def test_moments_are_those_of_all_exchanges_within_steps() -> None:
    steps = [([1, 1, 2, 2, 2], [1.0, 0.0, 0.0, 1.0, 0.5]), ([1, 2, 3], [0.2, 0.9, 0.4]), ([1], [0.7])]
    rows = []
    means, covariance = np.zeros(3), np.zeros((3, 3))
    for depths, y in steps:
        sizes = np.bincount(depths, minlength=4)[1:]
        sums = []
        for order in itertools.permutations(y):
            sums.append(np.bincount(depths, weights=order, minlength=4)[1:])
        means += np.mean(sums, axis=0)
        covariance += np.cov(np.array(sums).T, bias=True)
        variance = np.var(y, ddof=1) if len(y) > 1 else 0.0
        present = np.flatnonzero(sizes)
        rows.append(("x", (present + 1).tolist(), sizes[present].tolist(), 1, np.mean(y), variance))
    names = ["label", "depths", "sizes", "n_steps", "sum_mean", "sum_variance"]
    found = moments(pd.DataFrame(rows, columns=names), ["other", "x"], 3)
    np.testing.assert_allclose(found[0], [np.zeros(3), means], atol=1e-12)
    np.testing.assert_allclose(found[1], [np.zeros((3, 3)), covariance], atol=1e-12)


def labelled(run: Run, outcome: str) -> list[dict[str, Any]]:
    rows = run.read("nodes").to_pylist()
    if outcome == "accepted":
        rows = [row for row in rows if row["outcome"] != "untested"]
    value = {
        "accepted": lambda row: float(row["outcome"] == "accepted"),
        "argmax": lambda row: float(row["is_target_argmax"]),
        "ratio": lambda row: row["accept_ratio"],
    }[outcome]
    return [{**row, "y": value(row)} for row in rows]


@pytest.mark.parametrize("outcome", ["accepted", "argmax", "ratio"])
def test_queries_and_table_equal_loops(tree_run: Run, outcome: str) -> None:
    nodes = pd.DataFrame(labelled(tree_run, outcome))
    connection = queries.connect([tree_run])
    cells = labels.predictor_cells(connection).set_index(["prompt_id", "depth"])
    wanted = nodes.groupby(["prompt_id", "depth"])["y"].agg(["count", "sum", lambda y: (y**2).sum()])
    for place, name in enumerate(("n", "sum", "sq")):
        found = cells[f"{name}_{outcome}"].reindex(wanted.index)
        np.testing.assert_allclose(found, wanted.iloc[:, place], rtol=1e-9)
    patterns = labels.step_patterns(connection, outcome)
    steps = nodes.groupby(["domain", "prompt_id", "step"])["y"]
    assert patterns["n_steps"].sum() == len(steps)
    for domain, part in patterns.groupby("label"):
        means, variances = steps.mean()[domain], steps.var().fillna(0.0)[domain]
        assert part["sum_mean"].sum() == pytest.approx(means.sum(), rel=1e-9)
        assert part["sum_variance"].sum() == pytest.approx(variances.sum(), rel=1e-9)
        sizes = sum(sum(sizes) * n for sizes, n in zip(part["sizes"], part["n_steps"], strict=True))
        assert sizes == (nodes["domain"] == domain).sum()
    frame = predictors([tree_run], resampling=FAST).frame
    rows = frame[frame["outcome"] == outcome].set_index("predictor")
    y, domain, depth = (nodes[name].to_numpy() for name in ("y", "domain", "depth"))
    assert rows.loc["domain", "explained_variance"] == pytest.approx(regression(y, domain), abs=1e-8)
    assert rows.loc["depth", "explained_variance"] == pytest.approx(regression(y, depth), abs=1e-8)
    assert rows.loc["both", "explained_variance"] == pytest.approx(regression(y, domain, depth), abs=1e-8)
    assert rows["n_nodes"].tolist() == [len(nodes)] * 6
    if outcome == "ratio":
        assert rows["mutual_information"].isna().all()
        assert "not yes or no" in rows["reason"].iloc[0]
    else:
        assert rows.loc["depth", "mutual_information"] == pytest.approx(information(y, depth), rel=1e-7)


def test_chance_is_the_mean_over_permutations_done_outright(tree_run: Run) -> None:
    frame = predictors([tree_run], resampling=FAST).frame
    rows = frame[frame["outcome"] == "argmax"].set_index("predictor")
    nodes = pd.DataFrame(labelled(tree_run, "argmax"))
    rng = np.random.default_rng(0)
    prompts = nodes.groupby("prompt_id")["domain"].first()
    y, depth = nodes["y"].to_numpy(), nodes["depth"].to_numpy()
    by_domain, by_depth = [], []
    starts = np.flatnonzero(np.diff(nodes.groupby(["prompt_id", "step"], sort=False).ngroup(), prepend=-1))
    for _ in range(60):
        shuffled = pd.Series(rng.permutation(prompts.to_numpy()), index=prompts.index)
        by_domain.append(regression(y, nodes["prompt_id"].map(shuffled).to_numpy()))
        exchanged = np.concatenate([rng.permutation(part) for part in np.split(y, starts[1:])])
        by_depth.append(regression(exchanged, depth))
    for name, values in (("domain", by_domain), ("depth", by_depth)):
        error = np.std(values) / np.sqrt(60)
        assert rows.loc[name, "explained_variance_chance"] == pytest.approx(np.mean(values), abs=4 * error)
    excess = rows["explained_variance"] - rows["explained_variance_chance"]
    np.testing.assert_allclose(rows["explained_variance_excess"][:5], excess[:5], atol=1e-12)


def write_known(folder: Path, by_domain: float, by_depth: float, seed: int = 0) -> Run:
    """Chains of 3 in two domains whose argmax labels have a domain effect and a depth effect."""
    rng = np.random.default_rng(seed)
    prompts = {}
    for domain, sign in (("code", 1), ("chat", -1)):
        for i in range(15):
            steps = []
            for _ in range(12):
                rates = [0.5 + sign * by_domain + by_depth * (1 - d) for d in range(3)]
                flags = rng.random(3) < rates
                nodes = [
                    Node(d - 1, "rejected" if d == 0 else "untested", is_argmax=bool(flags[d]))
                    for d in range(3)
                ]
                steps.append(Step(nodes))
            prompts[f"{domain}/{i}"] = steps
    return open_run(write_run(folder, prompts))


def test_known_effects_are_told_apart(tmp_path: Path) -> None:
    cases = {
        "domain": write_known(tmp_path / "a", 0.2, 0.0),
        "depth": write_known(tmp_path / "b", 0.0, 0.3),
        "none": write_known(tmp_path / "c", 0.0, 0.0),
    }
    for name, run in cases.items():
        table = predictors([run], resampling=FAST)
        rows = table.frame[table.frame["outcome"] == "argmax"].set_index("predictor")
        for predictor in ("domain", "depth"):
            has_effect = predictor == name
            assert (rows.loc[predictor, "p_value"] < 0.01) == has_effect, (name, predictor)
            for measure in ("explained_variance", "mutual_information", "deviance_share"):
                assert (rows.loc[predictor, f"{measure}_excess_lo"] > 0) == has_effect, (name, predictor)
        if name != "none":
            words = next(note for note in table.notes if note.startswith("argmax"))
            assert f": {name} explains more" in words
            assert "(clear)" in words
    strong = predictors([cases["domain"]], resampling=FAST).frame
    row = strong[(strong["outcome"] == "argmax") & (strong["predictor"] == "domain")].iloc[0]
    # two domains at 0.7 and 0.3: the variance between them is 0.04 of 0.25
    assert row["explained_variance_excess_lo"] < 0.16 < row["explained_variance_excess_hi"]


def test_what_cannot_be_compared_is_null_with_a_reason(tmp_path: Path) -> None:
    one_depth = {
        f"{d}/{i}": [Step([Node(-1, "rejected", is_argmax=bool(i % 2))])] for d in ("a", "b") for i in (1, 2)
    }
    cases = {
        "one depth": one_depth,
        "nothing drafted": {"a/1": [Step(emitted=1)], "b/1": [Step(emitted=1)]},
        "the same": {f"{d}/1": [Step([Node(-1, "accepted"), Node(0, "accepted")])] for d in ("a", "b")},
    }
    for i, (words, prompts) in enumerate(cases.items()):
        table = predictors([open_run(write_run(tmp_path / str(i), prompts))], resampling=FAST)
        rows = table.frame[table.frame["outcome"] == "accepted"]
        assert len(table.frame) == 18
        assert rows["explained_variance"].isna().all()
        assert rows["reason"].str.contains(words).all(), (words, rows["reason"].iloc[0])


def test_tested_nodes_have_no_chance_for_depth(tree_run: Run) -> None:
    frame = predictors([tree_run], resampling=FAST).frame
    rows = frame[frame["outcome"] == "accepted"].set_index("predictor")
    for predictor in ("depth", "domain less depth", "depth given domain"):
        row = rows.loc[predictor]
        assert np.isfinite(row["explained_variance"])
        assert row[["explained_variance_chance", "explained_variance_excess", "p_value"]].isna().all()
        assert "cannot be permuted" in row["reason"]
    assert np.isfinite(rows.loc["domain", "explained_variance_excess"])
    assert rows.loc["domain", "reason"] is None


def test_one_domain_leaves_depth_measured(tmp_path: Path) -> None:
    run = write_known(tmp_path / "both", 0.0, 0.3)
    prompts = run.read("prompts").to_pylist()
    of_run = predictors([run], by="run", resampling=FAST)
    assert len({prompt["domain"] for prompt in prompts}) == 2
    rows = of_run.frame[of_run.frame["outcome"] == "argmax"].set_index("predictor")
    nodes = pd.DataFrame(labelled(run, "argmax"))
    expected = regression(nodes["y"].to_numpy(), nodes["depth"].to_numpy())
    for predictor in ("depth", "depth given run", "both"):
        assert rows.loc[predictor, "explained_variance"] == pytest.approx(expected, abs=1e-8)
    assert rows.loc["depth", "p_value"] < 0.01
    assert rows.loc["depth", "explained_variance_excess_lo"] > 0
    assert rows.loc["depth", "reason"] is None
    for predictor in ("run", "run less depth", "run given depth"):
        assert np.isnan(rows.loc[predictor, "explained_variance"])
        assert rows.loc[predictor, "reason"] == "the prompts have one run only"
    assert not any("explains more" in note for note in of_run.notes)
