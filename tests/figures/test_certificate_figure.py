"""The figure of certificates by what it draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from acceptlab import figures
from acceptlab.analysis.certificates import certificates
from acceptlab.records import CERTIFICATE_RULES
from acceptlab.resampling import Resampling
from acceptlab.store import open_run
from tests.real_contexts import make_known


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    known = make_known(tmp_path_factory.mktemp("figure") / "run", n_prompts=11, n_contexts=15)
    return certificates([open_run(known.folder)], resampling=Resampling(n_resamples=100)).frame


def pooled(frame: pd.DataFrame, direction: str) -> pd.DataFrame:
    return frame[(frame["domain"] == "all") & (frame["direction"] == direction) & frame["margin_bin"].isna()]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_coverage_is_drawn_for_every_rule_and_bin(direction: str, frame: pd.DataFrame) -> None:
    axes = Figure().subplots()
    figures.draw_coverage(frame, axes, direction)
    assert [line.get_label() for line in axes.lines] == list(CERTIFICATE_RULES)
    for line in axes.lines:
        rows = frame[
            (frame["domain"] == "all") & (frame["direction"] == direction) & frame["margin_bin"].notna()
        ]
        rows = rows[rows["rule"] == line.get_label()]
        assert list(line.get_xdata()) == [(number + 0.5) / 10 for number in rows["margin_bin"]]
        assert list(line.get_ydata()) == list(rows["coverage"])
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines}
    assert len(looks) == len(CERTIFICATE_RULES)


def test_thresholds_are_drawn_with_the_papers(frame: pd.DataFrame) -> None:
    axes = Figure().subplots()
    figures.draw_thresholds(frame, axes)
    lines = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    for direction in ("forward", "reverse"):
        medians = pooled(frame, direction)["threshold_median"].to_numpy(dtype=float)
        drawn = np.asarray(lines[direction].get_xdata(), dtype=float)
        assert drawn[np.isfinite(medians)] == pytest.approx(medians[np.isfinite(medians)])
        assert (drawn[np.isinf(medians)] == 30.0).all()
    assert list(lines["paper_p5"].get_xdata()) == [0.006, 0.071, 0.249, 0.531]
    assert list(lines["paper_median"].get_xdata()) == [0.559, 0.962, 1.456, 2.038]


def test_shares_of_proposals_add_up(frame: pd.DataFrame) -> None:
    axes = Figure().subplots()
    figures.draw_shares(frame, axes)
    bars = {container[0].get_gid(): [bar.get_width() for bar in container] for container in axes.containers}
    for direction in ("forward", "reverse"):
        rows = pooled(frame, direction)
        parts = [bars[f"{direction}-{name}"] for name in ("certified", "accepted", "undecided", "rejected")]
        assert np.sum(parts, axis=0) == pytest.approx(np.ones(len(CERTIFICATE_RULES)))
        assert parts[0] == pytest.approx((rows["n_certified"] / rows["n_contexts"]).to_numpy(dtype=float))
        assert parts[3] == pytest.approx((rows["n_rejected"] / rows["n_contexts"]).to_numpy(dtype=float))


def test_the_whole_figure_is_saved(frame: pd.DataFrame, tmp_path: Path) -> None:
    figures.save(figures.draw("certificates", frame, "A caption."), tmp_path / "c.svg")
    assert "<svg" in (tmp_path / "c.svg").read_text()


def test_panels_say_why_they_are_empty(frame: pd.DataFrame) -> None:
    empty = frame.assign(coverage=np.nan, threshold_median=np.nan, n_contexts=0, reason="no context")
    panels = figures.draw("certificates", empty, "").axes
    assert [panel.texts[0].get_text() for panel in panels] == ["no data: no context"] * 4
