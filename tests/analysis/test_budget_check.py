"""Trees run again: predictions and differences with known answers, pairing, groups, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from acceptlab import cli, figures, queries
from acceptlab.analysis.best_shape import predicted_lens
from acceptlab.analysis.budget_check import budget_check
from acceptlab.errors import UsageError
from acceptlab.queries import trees
from acceptlab.resampling import Resampling
from acceptlab.stats import independent_difference
from acceptlab.store import Run, open_run
from acceptlab.theory.best_tree import expected_tree_len
from acceptlab.tree import Tree, parse_tree
from tests.handmade import Node, Step, chain, write_run

FAST = Resampling(n_resamples=400)
TWO_BY_ONE = (-1, -1, 0, 1)
NAMES = {"a": "accepted", "r": "rejected", "u": "untested"}


def steps_of(parents: Sequence[int], outcomes: Sequence[str], **options: Any) -> list[Step]:
    """Steps that draft the same tree, each with a letter a node."""
    return [
        Step([Node(parent, NAMES[letter]) for parent, letter in zip(parents, step, strict=True)], **options)
        for step in outcomes
    ]


def made(folder: Path, steps: Sequence[Step], names: Sequence[str], run_id: str, **config: Any) -> Run:
    config = {"tree": "branches:2,1", "rule": "greedy", **config}
    return open_run(write_run(folder, dict.fromkeys(names, steps), run_id=run_id, config=config))


CODE = [f"code/{i}" for i in range(12)]
CHAT = [f"chat/{i}" for i in range(12)]
# depth 1: rank 0 in 2 of 4, rank 1 in 1 of 4; depth 2: 1 of the 3 children of accepted parents
MEASURED = steps_of(TWO_BY_ONE, ("auau", "auru", "raur", "rruu"), times_ms=(30.0, 50.0, 20.0))


@pytest.fixture
def measured(tmp_path: Path) -> Run:
    return made(tmp_path / "measured", MEASURED, CODE, "measured")


def test_prediction_outcome_and_difference_have_known_values(measured: Run, tmp_path: Path) -> None:
    again = steps_of((-1, 0), ("aa", "ar", "ru"), times_ms=(40.0, 30.0, 10.0))
    rerun = made(tmp_path / "again", again, CODE, "again", tree="chain:2")
    table = budget_check([measured, rerun], resampling=FAST)
    assert len(table.frame) == 1  # one group: nothing to pool
    row = table.frame.iloc[0]
    assert (row["domain"], row["tree"], row["run"], row["budget"], row["depth"]) == (
        "code",
        "chain:2",
        "again",
        2,
        2,
    )
    assert row["predicted_len"] == pytest.approx(1 / 2 + 1 / 2 * 1 / 3)
    assert row["realised_len"] == pytest.approx((2 + 1 + 0) / 3)
    # all prompts are alike, so every resample gives the same difference
    assert row[["len_difference_lo", "len_difference_hi"]].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert row["verdict"] == "longer than predicted"
    # two levels of 15 ms, the pass of 50 ms, the rest 20 ms
    assert row["predicted_tokens_per_s"] == pytest.approx(1000 * (1 + 2 / 3) / 100)
    assert row["realised_tokens_per_s"] == pytest.approx(1000 * (3 + 3) / (3 * 80))
    assert row["speed_difference"] == pytest.approx(25 - 1000 * (1 + 2 / 3) / 100)
    assert row["speed_verdict"] == "faster than predicted"
    assert (row["n_steps"], row["n_prompts"], row["n_shared"]) == (36, 12, 12)
    assert row["choice"] is None


def test_the_runs_own_tree_agrees_with_itself(measured: Run, tmp_path: Path) -> None:
    rerun = made(tmp_path / "again", MEASURED, CODE, "again")
    row = budget_check([measured, rerun], resampling=FAST).frame.iloc[0]
    # every accepted parent of a depth offers the same ranks, so the products telescope
    assert row["predicted_len"] == pytest.approx(1.0)
    assert row["len_difference"] == pytest.approx(0.0, abs=1e-12)
    assert (row["verdict"], row["speed_verdict"]) == ("agrees", "agrees")


def test_prompts_of_both_runs_are_resampled_together(tmp_path: Path) -> None:
    def run(name: str, prefix: str) -> Run:
        prompts = {
            f"code/{prefix}{i}": [Step(chain(letter)) for letter in ("aaar", "arrr")[i % 2]]
            for i in range(20)
        }
        return open_run(write_run(tmp_path / name, prompts, run_id=name, config={"tree": "chain:1"}))

    first, same, others = run("first", "x"), run("same", "x"), run("others", "y")
    frame = budget_check([first, same, others], resampling=FAST).frame
    paired, apart = (frame[frame.run == name].iloc[0] for name in ("same", "others"))
    assert paired["len_difference"] == pytest.approx(0.0, abs=1e-12)
    # a prompt moves the prediction and the outcome alike, up to rounding
    assert paired["len_difference_hi"] - paired["len_difference_lo"] < 1e-12
    assert (paired["n_shared"], apart["n_shared"]) == (20, 0)
    sums = np.array([[3.0, 4.0], [1.0, 4.0]] * 10)
    [oracle] = independent_difference(sums, sums, lambda t: t[:, :1] / t[:, 1:], FAST)
    width = (oracle.hi or 0.0) - (oracle.lo or 0.0)
    # two quantiles of 400 resamples each, from other draws
    assert apart["len_difference_hi"] - apart["len_difference_lo"] == pytest.approx(width, rel=0.25)
    assert width > 0.2


def test_all_pools_only_the_groups_that_both_runs_have(tmp_path: Path) -> None:
    domains = {
        **dict.fromkeys(CODE, MEASURED),
        **dict.fromkeys(CHAT, steps_of(TWO_BY_ONE, ("rruu", "rauu"[:4]))),
    }
    domains |= dict.fromkeys([f"math/{i}" for i in range(12)], MEASURED)
    config = {"tree": "branches:2,1", "rule": "greedy"}
    first = open_run(write_run(tmp_path / "first", domains, run_id="first", config=config))
    again = steps_of((-1,), ("a", "r"))
    both = made(tmp_path / "both", again, [*CODE, *CHAT], "both", tree="chain:1")
    one = made(tmp_path / "one", again, CHAT, "one", tree="chain:1")
    frame = budget_check([first, both, one], resampling=FAST).frame
    assert frame[["domain", "run"]].to_numpy().tolist() == [
        ["code", "both"],
        ["chat", "both"],
        ["chat", "one"],
        ["all", "both"],
    ]
    # code accepts its first child in 2 of 4 steps, chat in 0 of 2; math is in neither run again
    assert frame["predicted_len"].tolist() == pytest.approx([1 / 2, 0, 0, 2 / 6])
    assert frame["realised_len"].tolist() == pytest.approx([1 / 2] * 4)


def test_the_fastest_tree_is_marked_by_prediction_and_by_outcome(measured: Run, tmp_path: Path) -> None:
    slow = steps_of((-1, 0), ("aa", "ar"), times_ms=(90.0, 90.0, 20.0))
    quick = steps_of((-1,), ("a", "r"), times_ms=(15.0, 30.0, 5.0))
    runs = [
        measured,
        made(tmp_path / "two", slow, CODE, "two", tree="chain:2"),
        made(tmp_path / "one", quick, CODE, "one", tree="chain:1"),
    ]
    choices = dict(budget_check(runs, resampling=FAST).frame[["run", "choice"]].to_numpy().tolist())
    # predicted: (1 + 2/3) / 100 ms against 1.5 / 85 ms; realised: 2.5 / 200 ms against 1.5 / 50 ms
    assert choices == {"two": None, "one": "both"}
    costs = tmp_path / "costs.csv"
    costs.write_text("n,ms\n1,10\n2,400\n3,400\n")
    runs[1] = made(
        tmp_path / "fast", steps_of((-1, 0), ("aa",), times_ms=(1.0, 1.0, 1.0)), CODE, "fast", tree="chain:2"
    )
    choices = dict(
        budget_check(runs, resampling=FAST, costs_file=costs).frame[["run", "choice"]].to_numpy().tolist()
    )
    assert choices == {"fast": "both", "one": None}


def test_what_cannot_be_compared_is_refused(measured: Run, tmp_path: Path) -> None:
    again = steps_of((-1, 0), ("aa",))
    with pytest.raises(UsageError, match="two runs"):
        budget_check([measured])
    good = made(tmp_path / "good", again, CODE, "good", tree="chain:2")
    with pytest.raises(UsageError, match="domain or source"):
        budget_check([measured, good], by="run")
    for key, value in (("rule", "top:2"), ("temperature", 0.5), ("draft", "other")):
        other = made(tmp_path / key, again, CODE, key, **{"tree": "chain:2", key: value})
        with pytest.raises(UsageError, match=f"has {key} "):
            budget_check([measured, other])
    adaptive = made(tmp_path / "adaptive", again, CODE, "adaptive", tree="dynamic:nodes=2,depth=2,topk=1")
    with pytest.raises(UsageError, match="confident"):
        budget_check([measured, adaptive])
    deep = made(tmp_path / "deep", steps_of((-1, 0, 1), ("aaa",)), CODE, "deep", tree="chain:3")
    with pytest.raises(UsageError, match=r"does not measure every place of tree 'chain:3'"):
        budget_check([measured, deep])
    nothing = made(tmp_path / "nothing", [Step(emitted=1)], CODE, "nothing", tree="chain:1")
    with pytest.raises(UsageError, match="drafted nothing"):
        budget_check([measured, nothing])


def test_a_place_that_one_group_never_offered_has_no_prediction_there(tmp_path: Path) -> None:
    domains = {**dict.fromkeys(CODE, MEASURED), **dict.fromkeys(CHAT, steps_of(TWO_BY_ONE, ("rruu",)))}
    config = {"tree": "branches:2,1", "rule": "greedy"}
    first = open_run(write_run(tmp_path / "first", domains, run_id="first", config=config))
    again = made(tmp_path / "again", steps_of((-1, 0), ("aa",)), [*CODE, *CHAT], "again", tree="chain:2")
    frame = budget_check([first, again], resampling=FAST).frame.set_index("domain")
    assert np.isnan(frame.loc["chat", "predicted_len"])
    assert frame.loc["chat", "verdict"] is None
    assert "offered no child" in frame.loc["chat", "reason"]
    assert frame.loc["chat", "realised_len"] == 2.0
    assert frame.loc["code", "predicted_len"] == pytest.approx(2 / 3)


def test_predicted_lengths_equal_the_plain_recursion() -> None:
    rng = np.random.default_rng(0)
    offered = rng.integers(1, 50, (3, 2, 3)).astype(np.float64)
    accepted = np.floor(offered * rng.random((3, 2, 3)) / 3)
    chosen = [Tree(TWO_BY_ONE), Tree(()), Tree((-1, -1, -1, 1, 1, 0)), Tree((-1, 0))]
    found = predicted_lens(chosen, accepted, offered)
    for batch, column in np.ndindex(3, 4):
        wanted = expected_tree_len(chosen[column], accepted[batch] / offered[batch])
        assert found[batch, column] == pytest.approx(wanted, rel=1e-12)
    gone = offered.copy()
    gone[:, 0, 0] = 0.0  # a resample without that place
    assert predicted_lens([Tree((-1, 0))], accepted, gone).tolist() == [[0.0]] * 3


def test_queries_equal_loops(measured: Run, tmp_path: Path) -> None:
    mixed = [*MEASURED, Step(emitted=1, times_ms=(1.0, 1.0, 1.0)), *steps_of((-1, 0, 0, 1, 1), ("aurra",))]
    run = made(tmp_path / "mixed", mixed, ["code/a", "new/b"], "mixed")
    connection = queries.connect([run])
    assert trees.largest_tree(connection) == (-1, 0, 0, 1, 1)
    steps = [row for row in run.read("steps").to_pylist() if row["n_nodes"]]
    for row in trees.drafted_sums(connection).to_dict("records"):
        own = [step for step in steps if step["prompt_id"] == row["prompt_id"]]
        assert row["n_drafted"] == len(own) == 5
        assert row["accepted_len"] == sum(step["accepted_len"] for step in own)
        assert row["step_ms"] == pytest.approx(400.0)
    assert trees.largest_tree(queries.connect([measured])) == TWO_BY_ONE
    nothing = made(tmp_path / "nothing", [Step(emitted=1)], CODE, "nothing")
    assert trees.largest_tree(queries.connect([nothing])) == ()
    assert parse_tree("branches:2,1").static == Tree(TWO_BY_ONE)


def test_the_command_and_its_figure(measured: Run, tmp_path: Path) -> None:
    again = made(tmp_path / "again", steps_of((-1, 0), ("aa", "ar", "ru")), CODE, "again", tree="chain:2")
    out, err = io.StringIO(), io.StringIO()
    words = ["analyze", "budget-check", str(measured.path), str(again.path), "--resamples", "200"]
    with redirect_stdout(out), redirect_stderr(err):
        assert cli.run([*words, "--format", "csv", "--plot", str(tmp_path / "check.svg")]) == 0
    assert "longer than predicted" in out.getvalue()
    assert (tmp_path / "check.svg").stat().st_size > 1000
    frame = budget_check([measured, again], resampling=FAST).frame
    axes = Figure().subplots()
    figures.draw_budget_check(frame, axes, "length")
    drawn = {str(line.get_gid()): np.asarray(line.get_xdata()).tolist() for line in axes.lines}
    assert drawn == {"predicted": frame["predicted_len"].tolist(), "realised": frame["realised_len"].tolist()}
