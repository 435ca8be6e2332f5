"""Runs shared by the tests of the analyses."""

from __future__ import annotations

import pytest

from acceptlab.store import Run, open_run
from tests.synthetic import make_run


@pytest.fixture(scope="session")
def tree_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A greedy run of trees of depth 3 and branching 2: four domains, 12 prompts each."""
    return open_run(make_run(tmp_path_factory.mktemp("analysis") / "tree"))


@pytest.fixture(scope="session")
def sampled_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of chains under the rejection rule: two domains, 11 prompts each, none cut by a limit."""
    folder = tmp_path_factory.mktemp("analysis") / "chain"
    return open_run(
        make_run(
            folder,
            domains=("code", "chat"),
            n_prompts=11,
            n_steps=6,
            tree="chain:4",
            rule="rejection",
            max_new_tokens=1000,
            seed=2,
        )
    )
