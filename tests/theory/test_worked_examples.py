"""The script behind the study of worked examples: its tables, and that its verdict quotes them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("worked_examples", STUDIES / "worked_examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("certainty", "value", "path"), [(0.9, 0.96, 0.478519), (0.8, 1.02, 0.543333), (1.0, 0.9, 0.426667)]
)
def test_the_product_has_the_opposite_gradient(
    script: ModuleType, certainty: float, value: float, path: float
) -> None:
    table = script.gradient_table(certainty).set_index("quantity")
    assert table["value"].to_numpy() == pytest.approx([value] * 5, abs=1e-12)
    # a central difference over 2e-6 keeps about ten digits
    assert table["gradient"].tolist() == pytest.approx([0.2, -0.12, 0.2, 0.2, -0.12], abs=1e-8)
    # stated with six digits
    assert table["variance of the gradient"].tolist()[2:] == pytest.approx([path, 0.426667, 0.3456], abs=1e-6)


def test_the_error_of_the_product_does_not_vanish(script: ModuleType) -> None:
    table = script.error_table(0.9).set_index("texts")
    for n in (1, 1000):
        assert table.loc[n, "WTV, trajectory"] == pytest.approx(0.3456 / n + 0.32**2, abs=1e-7)
        assert table.loc[n, "branch"] == pytest.approx(0.426667 / n, abs=1e-6)


def test_the_product_reverses_the_ranking(script: ModuleType) -> None:
    table = script.ranking_table()
    assert table["J"].tolist() == pytest.approx([0.87, 0.85], abs=1e-12)
    assert table["W"].tolist() == pytest.approx([0.71, 0.994], abs=1e-12)
    assert (table["J"] - table["W"]).tolist() == pytest.approx(table["C_2"].tolist(), abs=1e-12)


def test_the_verdict_quotes_what_the_script_prints(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main()
    printed = [float(number) for number in re.findall(r"-?\d+\.\d+", capsys.readouterr().out)]
    first = (STUDIES / "worked-examples.md").read_text().partition("On the real pair")[0]
    quoted = re.findall(r"-?\d+\.\d{2,}", first)
    assert len(quoted) > 15
    for number in quoted:
        digits = len(number.partition(".")[2])
        # 0.32 is the distance of the two printed gradients
        assert number == "0.32" or any(round(value, digits) == float(number) for value in printed), number
