"""Figures by what they draw: points, intervals, labels, empty panels, equal files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from acceptlab import figures
from acceptlab.analysis import ANALYSES, AnalysisTable
from acceptlab.errors import RunError, UsageError
from acceptlab.figures import style
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Step, chain, write_run
from tests.synthetic import make_run

NAMES = ("depth-profile", "domains", "entropy", "metrics")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(
        make_run(tmp_path_factory.mktemp("figures") / "run", domains=("code", "chat"), n_prompts=11)
    )


@pytest.fixture(scope="module")
def tables(run: Run) -> dict[str, AnalysisTable]:
    return {name: ANALYSES[name]([run], resampling=Resampling(n_resamples=100)) for name in NAMES}


@pytest.fixture(scope="module")
def undrafted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(write_run(tmp_path_factory.mktemp("figures") / "none", {"code/x": [Step(emitted=1)]}))


def _panel() -> Axes:
    return Figure().subplots()


def _points(axes: Axes, name: str) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in axes.lines if line.get_gid() == name]
    return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)


def _intervals(axes: Axes) -> np.ndarray:
    """All interval bars as (x0, y0, x1, y1)."""
    bars = [c for c in axes.collections if isinstance(c, LineCollection)]
    return np.array([segment.reshape(-1) for bar in bars for segment in bar.get_segments()])


@pytest.mark.parametrize("quantity", ["S_d", "alpha_d", "node_rate_d", "mean_ratio_d"])
def test_depth_profile_draws_every_value_and_interval(
    quantity: str, tables: dict[str, AnalysisTable]
) -> None:
    frame, axes = tables["depth-profile"].frame, _panel()
    figures.draw_depth_profile(frame, axes, quantity)
    for group, rows in frame.groupby("domain"):
        x, y = _points(axes, str(group))
        assert y == pytest.approx(rows[quantity].to_numpy())
        # lines are dodged sideways, by less than half a depth
        assert np.abs(x - rows["depth"].to_numpy(dtype=float)).max() < 0.5
    bars = _intervals(axes)
    known = frame.dropna(subset=[f"{quantity}_lo"])
    assert sorted(bars[:, 1]) == pytest.approx(sorted(known[f"{quantity}_lo"]))
    assert sorted(bars[:, 3]) == pytest.approx(sorted(known[f"{quantity}_hi"]))
    assert quantity in axes.get_ylabel()
    assert "tokens" in axes.get_xlabel()


def test_domains_draw_every_value_and_interval(tables: dict[str, AnalysisTable]) -> None:
    frame = tables["domains"].frame
    for panel, (_, unit, quantities) in figures.domains.PANELS.items():
        axes = _panel()
        figures.draw_domains(frame, axes, panel)
        for quantity, label in quantities.items():
            assert _points(axes, label)[0] == pytest.approx(frame[quantity].to_numpy())
        bars = _intervals(axes)
        lows = np.concatenate([frame[f"{quantity}_lo"] for quantity in quantities])
        assert sorted(bars[:, 0]) == pytest.approx(sorted(lows))
        assert axes.get_xlabel() == unit
        assert [label.get_text() for label in axes.get_yticklabels()] == ["code", "chat", "all"]


def test_entropy_draws_depths_and_groups(tables: dict[str, AnalysisTable]) -> None:
    frame, axes = tables["entropy"].frame, _panel()
    figures.draw_entropy(frame, axes, "target", "accept_ratio")
    rows = frame[(frame["entropy"] == "target") & (frame["outcome"] == "accept_ratio")]
    assert _points(axes, "all depths")[0] == pytest.approx(rows[rows["depth"].isna()]["rho"].to_numpy())
    x, y = _points(axes, "depth 2")
    assert x == pytest.approx(rows[rows["depth"] == 2]["rho"].to_numpy())
    assert np.round(y).tolist() == [0, 1, 2]
    assert len(_intervals(axes)) == rows["rho_lo"].notna().sum()


def test_metrics_draw_lengths_and_rates_apart(tables: dict[str, AnalysisTable]) -> None:
    frame = tables["metrics"].frame
    for unit in ("tokens", "share"):
        axes = _panel()
        figures.draw_metrics(frame, axes, unit)
        rows = frame[frame["unit"] == unit]
        drawn = np.nansum([_points(axes, name)[0] for name in ("no bonus token", "bonus counted")], axis=0)
        assert drawn == pytest.approx(rows["value"].to_numpy())
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [f"{row['source']}: {row['metric']}" for row in rows.to_dict("records")]


@pytest.mark.parametrize("name", NAMES)
def test_whole_figures_have_panels_and_a_caption_with_n(name: str, tables: dict[str, AnalysisTable]) -> None:
    figure = figures.draw(name, tables[name].frame, tables[name].caption)
    assert len(figure.axes) == {"depth-profile": 4, "domains": 4, "entropy": 6, "metrics": 2}[name]
    assert all(axes.lines and axes.get_title() and axes.get_xlabel() for axes in figure.axes)
    caption = " ".join(figure.get_supxlabel().split())
    assert "22 prompts" in caption
    assert "nodes" in caption


@pytest.mark.parametrize("name", NAMES)
def test_nothing_drafted_gives_labelled_empty_panels(name: str, undrafted: Run, tmp_path: Path) -> None:
    table = ANALYSES[name]([undrafted])
    figure = figures.draw(name, table.frame, table.caption)
    shown = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    empty = [texts for texts in shown if texts]
    assert len(empty) == {"depth-profile": 4, "domains": 4, "entropy": 6, "metrics": 1}[name]
    assert all(texts[0].startswith("no data: ") for texts in empty)
    figures.save(figure, tmp_path / "figure.png")


def test_a_facet_without_data_leaves_the_others_drawn(tmp_path: Path) -> None:
    # accept_ratio is undefined everywhere: its panel is empty, the other three are not; chat drafted nothing
    prompts = {"code/a": [Step(chain("a", "r", accept_ratio=None))], "chat/b": [Step(emitted=1)]}
    run = open_run(write_run(tmp_path / "run", prompts))
    figure = figures.draw("depth-profile", ANALYSES["depth-profile"]([run]).frame)
    assert [len(axes.lines) for axes in figure.axes] == [3, 3, 3, 0]
    assert figure.axes[3].texts[0].get_text() == "no data: no node with a defined accept_ratio"
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["code", "chat (no data)", "all"]
    figures.save(figure, tmp_path / "figure.svg")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_frame_is_drawn(name: str, tables: dict[str, AnalysisTable]) -> None:
    figure = figures.draw(name, tables[name].frame.iloc[:0])
    assert all(axes.texts[0].get_text() == "no data" for axes in figure.axes)


def test_series_differ_in_colour_marker_and_line() -> None:
    looks = [style.series(i) for i in range(7)]
    for feature in ("colour", "marker", "line"):
        assert len({str(getattr(look, feature)) for look in looks}) == 7
    assert style.series(0, pooled=True).colour == "black"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_equal_figures_give_equal_files(
    suffix: str, tables: dict[str, AnalysisTable], tmp_path: Path
) -> None:
    paths = [tmp_path / "made" / f"{i}.{suffix}" for i in range(2)]
    for path in paths:
        table = tables["depth-profile"]
        figures.save(figures.draw("depth-profile", table.frame, table.caption), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert len(first) > 5000
    assert b"date>" not in first.lower()
    assert b"creationdate" not in first.lower()
    assert sorted(p.name for p in paths[0].parent.iterdir()) == [f"{i}.{suffix}" for i in range(2)]


def test_other_suffixes_and_unwritable_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.gif"):
        figures.save(Figure(), tmp_path / "x.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        figures.save(Figure(), tmp_path / "file" / "x.png")
    with pytest.raises(UsageError, match="no figure"):
        figures.draw("nothing", pd.DataFrame())
