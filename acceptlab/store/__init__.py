"""Runs on disk: the only package that writes or opens Parquet. No statistics, no models.

`RunWriter` writes a run, `open_run` and `find_runs` read it.
"""

from acceptlab.store.reader import Run, find_runs, open_run
from acceptlab.store.rounding import prob_upper_bounds, round_down, round_down_probs
from acceptlab.store.writer import RunWriter

__all__ = [
    "Run",
    "RunWriter",
    "find_runs",
    "open_run",
    "prob_upper_bounds",
    "round_down",
    "round_down_probs",
]
