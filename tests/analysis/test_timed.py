"""Published speed-ups from timed decodes, against sums worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from acceptlab.analysis import metrics
from acceptlab.errors import UsageError
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.synthetic import make_run

FEW = Resampling(n_resamples=100)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = make_run(tmp_path_factory.mktemp("timed") / "run", domains=("code", "chat"), n_prompts=3)
    return open_run(folder)


def samples(tree: str) -> pd.DataFrame:
    """Two prompts of other domains, each decoded twice either way; the second decode of a prompt was disturbed."""
    rows = []
    for prompt, domain, tokens, spec_ms, plain_ms in (
        ("a", "code", 10, 200.0, 500.0),
        ("b", "chat", 20, 500.0, 500.0),
    ):
        for arm, ms in ((tree, spec_ms), ("plain", plain_ms), ("generate", 9.0)):
            for repeat in range(3):
                disturbed = 1000.0 if repeat == 1 else 0.0
                rows.append(
                    {
                        "arm": arm,
                        "domain": domain,
                        "prompt_id": prompt,
                        "repeat": repeat,
                        "n_new_tokens": tokens,
                        "prefill_ms": 50.0 if arm == "plain" else 100.0,
                        "decode_ms": ms + disturbed,
                    }
                )
    return pd.DataFrame(rows)


def speed_ups(run: Run, frame: pd.DataFrame, folder: Path, **options: str) -> pd.DataFrame:
    path = folder / "samples.parquet"
    frame.to_parquet(path)
    found = metrics([run], resampling=FEW, timed_file=path, **options).frame  # type: ignore[arg-type]
    return found[found["metric"] == "speed-up"]


def test_speed_ups_by_their_definitions(run: Run, tmp_path: Path) -> None:
    found = speed_ups(run, samples(run.config["tree"]), tmp_path).set_index("source")
    # means over prompts of tokens/s, prefill included: 10/300 and 20/600 with, 10/550 and 20/550 without
    assert found.loc["Spec-Bench", "value"] == pytest.approx((10 / 300 + 20 / 600) / (10 / 550 + 20 / 550))
    # means over prompts of ms a token, decoding only: 50 and 25 without, 20 and 25 with
    assert found.loc["DFlash", "value"] == pytest.approx(75 / 45)
    assert found["n"].tolist() == [2, 2]
    assert found["reason"].tolist() == ["fewer than 10 prompts"] * 2


def test_groups_have_their_own_where_they_can_be_told(run: Run, tmp_path: Path) -> None:
    frame = samples(run.config["tree"])
    found = speed_ups(run, frame, tmp_path, by="domain").set_index(["domain", "source"])["value"]
    assert found["code", "DFlash"] == pytest.approx(50 / 20)
    assert found["chat", "DFlash"] == pytest.approx(25 / 25)
    assert found["all", "DFlash"] == pytest.approx(75 / 45)
    found = speed_ups(run, frame, tmp_path, by="run").set_index(["run", "source"])["value"]
    assert found["all", "DFlash"] == pytest.approx(75 / 45)
    assert found.isna().sum() == 2  # those of the run itself


def test_without_timings_the_remedy_is_named(run: Run) -> None:
    found = metrics([run], resampling=FEW).frame
    rows = found[found["metric"] == "speed-up"]
    assert rows["value"].isna().all()
    assert rows["reason"].str.contains("--timed FILE").all()


def test_timings_of_something_else_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="time that tree too"):
        speed_ups(run, samples("chain:7"), tmp_path)
    with pytest.raises(UsageError, match="holds no timings"):
        speed_ups(run, pd.DataFrame({"x": [1]}), tmp_path)
    with pytest.raises(UsageError, match="cannot read the timings"):
        metrics([run], resampling=FEW, timed_file=tmp_path / "none.parquet")
