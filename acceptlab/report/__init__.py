"""Tables, figures and manifests -> a self-contained HTML page, and the files beside it. Computes nothing.

A page has no external request: style, figures and the few lines of script are part of the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from acceptlab.analysis import ANALYSES, AnalysisTable
from acceptlab.report.page import PAGE, Report, Section, render_page, write_report
from acceptlab.report.saved import load_table, save_table, table_paths
from acceptlab.resampling import DEFAULT, Resampling
from acceptlab.store import Run

REPORT_ANALYSES = ("domains", "depth-profile", "entropy", "metrics")
"""What a report holds unless it is told otherwise, in the order of the page."""


def standard_tables(
    runs: Sequence[Run], names: Sequence[str] = REPORT_ANALYSES, resampling: Resampling = DEFAULT
) -> list[AnalysisTable]:
    """The tables of a report that nobody asked anything special of.

    Raises:
        UsageError: no run, or the same run twice.
        RunError: a part cannot be read.
    """
    return [ANALYSES[name](runs, resampling=resampling) for name in names]


__all__ = [
    "PAGE",
    "REPORT_ANALYSES",
    "Report",
    "Section",
    "load_table",
    "render_page",
    "save_table",
    "standard_tables",
    "table_paths",
    "write_report",
]
