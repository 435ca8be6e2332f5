"""Figures as files and as data URIs, in a light and a dark colouring. Draws nothing of its own."""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from acceptlab import figures
from acceptlab.analysis import AnalysisTable

_LIGHT_INK = "#d9dbde"
_FAINT_LINE = "#4a4f57"
_LIGHTER = {"#0072b2": "#4ba3dc", "#7a5c00": "#c9a24a", "#d55e00": "#f07f2f", "#009e73": "#2fbf95"}
"""Series colours that would sink into dark paper, with lighter ones of the same hue."""


@dataclass(frozen=True)
class Picture:
    """A figure, ready for the page and for files beside it. Width and height in CSS pixels."""

    svg: bytes
    png: bytes
    light_uri: str
    dark_uri: str
    width: int
    height: int


def picture_of(table: AnalysisTable) -> Picture | None:
    """The figure of an analysis; None where the analysis has none, or the table no rows."""
    if table.name not in figures.FIGURES or not len(table.frame):
        return None
    figure = figures.draw(table.name, table.frame, table.caption)
    svg, png = _saved(figure, ".svg"), _saved(figure, ".png")
    # the page has the caption as text, so its own figures go without
    shown = figures.draw(table.name, table.frame)
    _clear_background(shown)
    light = _uri(_saved(shown, ".svg"))
    darken(shown)
    dark = _uri(_saved(shown, ".svg"))
    width, height = (round(96 * inches) for inches in shown.get_size_inches())
    return Picture(svg, png, light, dark, width, height)


def darken(figure: Figure) -> None:
    """Recolour a figure for dark paper, in place: it must be one's own."""
    for artist in figure.findobj():
        if isinstance(artist, Text):
            artist.set_color(_on_dark(artist.get_color()))
        elif isinstance(artist, Line2D):
            _darken_line(artist)
        elif isinstance(artist, LineCollection):
            artist.set_color([_on_dark(colour) for colour in to_rgba_array(artist.get_color())])
        elif isinstance(artist, PathCollection):
            artist.set_facecolor([_on_dark(colour) for colour in to_rgba_array(artist.get_facecolor())])
    for axes in figure.axes:
        for spine in axes.spines.values():
            spine.set_edgecolor(_LIGHT_INK)
        for line in [*axes.get_xgridlines(), *axes.get_ygridlines()]:
            line.set_color(_FAINT_LINE)
        for patch in axes.findobj(Patch):
            if patch is not axes.patch and to_hex(patch.get_facecolor()) in _LIGHTER:
                patch.set_facecolor(_on_dark(patch.get_facecolor()))


def _darken_line(line: Line2D) -> None:
    """Line and marker; all are read first, since a marker's colour may follow the line's."""
    colour, edge, face = line.get_color(), line.get_markeredgecolor(), line.get_markerfacecolor()
    line.set_color(_on_dark(colour))
    for old, put in ((edge, line.set_markeredgecolor), (face, line.set_markerfacecolor)):
        if not (isinstance(old, str) and old == "none"):
            put(_on_dark(old))


def _clear_background(figure: Figure) -> None:
    """The page's own paper shows through."""
    figure.set_facecolor("none")
    for axes in figure.axes:
        axes.set_facecolor("none")


def _on_dark(colour: Any) -> Any:
    """The colour that stands for this one on dark paper: greys turn light, series colours become lighter."""
    red, green, blue = to_rgb(colour)
    if max(red, green, blue) - min(red, green, blue) < 0.05:
        return _LIGHT_INK if max(red, green, blue) < 0.7 else _FAINT_LINE
    found = to_hex((red, green, blue))
    return _LIGHTER.get(found, found)


def _saved(figure: Figure, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"figure{suffix}"
        figures.save(figure, path)
        figure.set_layout_engine("none")  # laid out by now: once is enough
        return path.read_bytes()


def _uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
