"""Queries behind streaks, calibration and predictors, one typed function a .sql file."""

from __future__ import annotations

import duckdb
import pandas as pd

from acceptlab.queries import fetch


def step_streaks(connection: duckdb.DuckDBPyConnection, at_most: int) -> pd.DataFrame:
    """Spread of the accepted length and runs of low steps, by text (`step_streaks.sql`)."""
    return fetch(connection, "step_streaks", at_most=at_most)
