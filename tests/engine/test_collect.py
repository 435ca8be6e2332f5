"""The collector end to end on a tiny pair in a folder: rows, resume after a kill, repetition, bad input."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from acceptlab import cli
from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.files import config_of, save_drafter
from acceptlab.drafters.llama import LlamaShape, LlamaStack
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.records import TABLES, TIMING_COLUMNS
from acceptlab.store import open_run
from tests.engine.helpers import save_pair
from tests.tiny import VOCAB

PROMPTS = [
    {"id": f"p{i}", "domain": ("code", "math")[i % 2], "prompt": f"word{i} word{i + 3} word7"}
    for i in range(6)
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collect")
    save_pair(folder)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return folder


def command(*options: str) -> list[str]:
    base = ["collect", "--target", "target", "--draft", "draft", "--prompts", "prompts.jsonl"]
    return [sys.executable, "-m", "acceptlab", *base, "--max-new-tokens", "20", *options]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(home: Path, *options: str) -> Done:
    """The command in this process: importing torch for each would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(home)
        patch.setenv("ACCEPTLAB_CACHE", str(home / "cache"))
        code = cli.run(command(*options)[3:])
    return Done(code, out.getvalue(), err.getvalue())


def rows(folder: Path) -> dict[str, pd.DataFrame]:
    found = {}
    for table in TABLES:
        frame = (
            open_run(folder)
            .read(table.name)
            .to_pandas()
            .drop(columns=["run_id", *TIMING_COLUMNS], errors="ignore")
        )
        text = frame.select_dtypes("category").columns
        frame[text] = frame[text].astype(object)  # categories would sort in the order of their appearance
        found[table.name] = frame.sort_values(list(table.key)).reset_index(drop=True)
    return found


def assert_same_rows(left: Path, right: Path) -> None:
    ours, theirs = rows(left), rows(right)
    for name in ours:
        pd.testing.assert_frame_equal(ours[name], theirs[name], check_exact=True)


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    done = run(home, "--run", "whole")
    assert done.returncode == 0, done.stderr
    return home / "whole"


def test_a_run_obeys_its_invariants(whole: Path) -> None:
    tables = rows(whole)
    nodes, steps, prompts = tables["nodes"], tables["steps"], tables["prompts"]
    assert len(prompts) == 6
    assert (
        prompts.n_new_tokens
        == steps.groupby("prompt_id").emitted_len.sum().reindex(prompts.prompt_id).to_numpy()
    ).all()
    assert (prompts.output_token_ids.map(len) == prompts.n_new_tokens).all()
    going_on = steps[steps.stop_reason.isna()]
    assert (going_on.emitted_len == going_on.accepted_len + 1).all()
    accepted = nodes[nodes.outcome == "accepted"].groupby(["prompt_id", "step"]).size()
    by_step = steps.set_index(["prompt_id", "step"]).accepted_len
    assert (accepted.reindex(by_step.index, fill_value=0) == by_step).all()
    assert set(nodes.outcome) == {"accepted", "rejected", "untested"}
    assert (steps.expected_accepted_len == steps.accepted_len).all()  # greedy verification is deterministic
    assert nodes.accept_ratio.max() <= 1
    first = steps[steps.step == 0].set_index("prompt_id")
    assert (first.context_len == prompts.set_index("prompt_id").n_prompt_tokens).all()
    assert (nodes.draft_rank == nodes.child_rank).all()
    assert (nodes.is_target_argmax == (nodes.target_rank == 0)).all()


def test_a_kill_loses_at_most_the_prompt_in_hand_and_resume_gives_the_same_rows(
    home: Path, whole: Path
) -> None:
    folder = home / "killed"
    environment = {**os.environ, "ACCEPTLAB_CACHE": str(home / "cache")}
    with subprocess.Popen(
        command("--run", "killed"),
        cwd=home,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("prompts/*.parquet"))) < 2 and time.monotonic() < deadline:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not open_run(folder, strict=False).is_complete
    refused = run(home, "--run", "killed")
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    resumed = run(home, "--run", "killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_rows(folder, whole)


def test_the_order_of_prompts_changes_nothing(home: Path, whole: Path) -> None:
    (home / "reversed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(PROMPTS)))
    done = run(home, "--prompts", "reversed.jsonl", "--run", "reversed")
    assert done.returncode == 0, done.stderr
    ours, theirs = rows(home / "reversed"), rows(whole)
    pd.testing.assert_frame_equal(ours["nodes"], theirs["nodes"], check_exact=True)


def test_prompts_at_once_give_the_same_rows(home: Path, whole: Path) -> None:
    done = run(home, "--run", "batch", "--batch-size", "4")
    assert done.returncode == 0, done.stderr
    ours, theirs = rows(home / "batch"), rows(whole)
    for name in ours:
        # float32 sums of a product with more rows
        pd.testing.assert_frame_equal(ours[name], theirs[name], check_exact=False, rtol=1e-3, atol=1e-5)
    assert open_run(home / "batch").config["batch_size"] == 4
    again = run(home, "--run", "batch", "--batch-size", "2")
    assert again.returncode == 0, again.stderr
    assert "already collected" in again.stderr


def test_a_head_that_reads_the_target_runs_alone_and_begins_nothing_else(home: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(home / "target")
    stack = LlamaStack.from_state(LlamaShape.from_config(model.config), model.state_dict())
    head = CrossHead.from_target(stack, (0, -1), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32))
    save_drafter(home / "head", head, config_of(head, "target", {}))
    refused = run(home, "--draft", "head", "--run", "alone", "--batch-size", "2")
    assert refused.returncode == 2
    assert "runs one prompt at a time: use --batch-size 1" in refused.stderr
    done = run(home, "--draft", "head", "--run", "alone")
    assert done.returncode == 0, done.stderr
    assert open_run(home / "alone").n_rows("prompts") == len(PROMPTS)


def test_a_run_goes_on_at_another_batch_size(home: Path, whole: Path) -> None:
    folder = home / "interrupted"
    first = run(home, "--run", "interrupted")
    assert first.returncode == 0, first.stderr
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = {table: [] for table in manifest["parts"]}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "complete": False, "parts": parts}))
    resumed = run(home, "--run", "interrupted", "--resume", "--batch-size", "3")
    assert resumed.returncode == 0, resumed.stderr
    assert rows(folder)["prompts"].output_token_ids.map(list).tolist() == (
        rows(whole)["prompts"].output_token_ids.map(list).tolist()
    )


def test_the_same_command_twice_changes_nothing(home: Path, whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    for options in (("--run", "whole"), ("--run", "whole", "--resume")):
        again = run(home, *options)
        assert again.returncode == 0, again.stderr
        assert "already collected" in again.stderr
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before
    other = run(home, "--run", "whole", "--seed", "1")
    assert other.returncode == 2
    assert "already" in other.stderr


def test_unnamed_runs_find_themselves_again(home: Path) -> None:
    first = run(home, "--limit", "1")
    assert first.returncode == 0, first.stderr
    second = run(home, "--limit", "1")
    assert second.stdout == first.stdout
    assert "already collected" in second.stderr


def test_one_token_gives_a_run_without_nodes(home: Path) -> None:
    done = run(home, "--run", "one", "--max-new-tokens", "1", "--limit", "1")
    assert done.returncode == 0, done.stderr
    tables = rows(home / "one")
    assert len(tables["nodes"]) == 0
    assert tables["steps"].n_nodes.tolist() == [0, 0]
    assert tables["prompts"].n_new_tokens.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prompts", "missing.jsonl"), "missing.jsonl"),
        (("--domain", "poetry"), "poetry"),
        (("--tree", "star:3"), "star:3"),
        (("--rule", "greedier"), "greedier"),
        (("--target", "no-such-folder", "--draft", "draft"), "no-such-folder"),
        (("--rule", "block"), "chain"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(home: Path, options: tuple[str, ...], words: str) -> None:
    done = run(home, "--run", "bad", *options)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "bad").exists()


def test_a_dp_tree_is_made_from_an_earlier_run(home: Path, whole: Path) -> None:
    done = run(home, "--run", "best", "--tree", f"dp:nodes=4,from={whole}", "--limit", "1")
    assert done.returncode == 0, done.stderr
    nodes = rows(home / "best")["nodes"]
    assert set(nodes.groupby(["prompt_id", "step"]).size()) == {4}
    missing = run(home, "--run", "none", "--tree", "dp:nodes=4,from=nowhere", "--limit", "1")
    assert missing.returncode == 2
    assert "nowhere" in missing.stderr


def test_a_typo_is_told_without_importing_torch() -> None:
    code = (
        "import sys; from acceptlab.cli import run; run(['collect', '--tree', 'chian:3']); "
        "run(['collect', '--domain', 'poetry']); run(['collect', '--top-p', '0']); "
        "sys.exit(' '.join(n for n in ('torch', 'transformers') if n in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error:") == 3
