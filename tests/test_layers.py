"""The one-way import rule, and what may import what outside the project."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import acceptlab

PACKAGE = Path(acceptlab.__file__).parent

LAYERS = (
    {"errors", "records"},
    {"files", "rules", "rng", "top", "warping"},
    {"tree", "models"},
    {"passes"},
    {"pairing", "relaxed", "walk", "theory", "prompts"},
    {"sampling", "vocab_sums"},
    {"verify"},
    {"draft", "measures", "toy", "drafters"},
    {"pairs", "adaptive"},
    {"engine"},
    {"lanes"},
    {"store"},
    {"collect"},
    {"queries"},
    {"resampling"},
    {"stats"},
    {"ranks"},
    {"analysis"},
    {"figures"},
    {"report"},
    {"training", "bench", "run"},
    {"along", "audit"},
    {"study"},
    {"cli"},
)
"""prompts -> engine -> node records -> Parquet -> queries -> statistics -> figures -> report, with the tools on top.

A module may import from its own part and from parts above it in this list.
"""

ANALYSIS = (
    "store",
    "queries",
    "stats",
    "ranks",
    "analysis",
    "figures",
    "report",
    "theory",
    "prompts",
    "rules",
)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            if node.module == "acceptlab":
                names |= {f"acceptlab.{alias.name}" for alias in node.names}
    return names


MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.stem.startswith("__")
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    rank = {name: level for level, names in enumerate(LAYERS) for name in names}
    own = part_of(path)
    assert own in rank, f"{own} has no place in the layers: add it"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "acceptlab" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] == own or rank[parts[1]] < rank[own], f"{own} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_models_import_transformers(path: Path) -> None:
    if part_of(path) not in {"pairs", "training", "drafters"}:
        assert not {name for name in imports(path) if name.split(".")[0] == "transformers"}


def test_records_and_rules_need_the_standard_library_only() -> None:
    for name in ("records", "rules", "errors"):
        heavy = {n.split(".")[0] for n in imports(PACKAGE / f"{name}.py")} - set(sys.stdlib_module_names)
        assert heavy <= {"acceptlab"}, name


def test_analysis_never_imports_torch() -> None:
    code = "import sys; " + "; ".join(f"import acceptlab.{name}" for name in ANALYSIS)
    code += "; sys.exit(' '.join(n for n in ('torch', 'transformers') if n in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_answers_without_the_heavy_imports() -> None:
    code = (
        "import sys; from acceptlab.cli import run; run(['--help']); "
        "sys.exit(' '.join(n for n in ('torch', 'pandas', 'duckdb', 'numpy') if n in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "acceptlab", "--help"], capture_output=True, check=True)
    # half a second is the promise; a loaded test machine gets some room, torch alone would take six
    assert time.perf_counter() - started < 2.0
