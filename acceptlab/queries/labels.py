"""Queries behind streaks, calibration and predictors, one typed function a .sql file."""

from __future__ import annotations

import duckdb
import pandas as pd

from acceptlab.queries import fetch, sql


def step_streaks(connection: duckdb.DuckDBPyConnection, at_most: int) -> pd.DataFrame:
    """Spread of the accepted length and runs of low steps, by text (`step_streaks.sql`)."""
    return fetch(connection, "step_streaks", at_most=at_most)


def add_confidence(connection: duckdb.DuckDBPyConnection, *, listed: bool) -> None:
    """Create the view `confident` that the two calibration queries read.

    Args:
        connection: where to.
        listed: take the draft's model probability from the contexts' lists, since draft_prob is warped.
    """
    name = "confidence_listed" if listed else "confidence_model"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW confident AS {sql(name)}")


def calibration_bins(connection: duckdb.DuckDBPyConnection, n_bins: int) -> pd.DataFrame:
    """Confidence and outcomes by prompt and bin (`calibration_bins.sql`)."""
    return fetch(connection, "calibration_bins", n_bins=n_bins)


def confidence_levels(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Counts by prompt and fine level of confidence (`confidence_levels.sql`)."""
    return fetch(connection, "confidence_levels")


def predictor_cells(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Outcomes by prompt and depth (`predictor_cells.sql`)."""
    return fetch(connection, "predictor_cells")


def step_patterns(connection: duckdb.DuckDBPyConnection, outcome: str) -> pd.DataFrame:
    """Moments of an outcome within steps, by group and pattern of depths (`step_patterns.sql`)."""
    return fetch(connection, "step_patterns", outcome=outcome)
