"""Two worked examples in which the product of mean overlaps misleads; prints the tables of worked-examples.md.

    python studies/worked_examples.py

Two tokens A and B, windows of two positions, every text enumerated. J is the expected accepted length, W the product
form (population WTV); path, branch and WTV are its estimators on texts that the target sampled.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from acceptlab.theory import chains
from acceptlab.theory.enumeration import EnumeratedChain, enumerate_chain

STEP = 1e-6
"""Half of the central difference in theta; every length is a polynomial of low degree there, away from its kinks."""

ESTIMATORS = {
    "path": lambda chain: chains.path_lens(chain.ratios),
    "branch": lambda chain: chains.branch_lens(chain.ratios, chain.overlaps),
    "WTV, trajectory": lambda chain: chains.wtv_lens(chain.overlaps),
}


def opposite_gradients(theta: float, certainty: float) -> EnumeratedChain:
    """Example 1. Targets (.4, .6), then (certainty, 1 - certainty); drafts (.8, .2), then (theta, 1 - theta) after A
    and (1 - theta, theta) after B.
    """
    second = np.array([[certainty, 1.0 - certainty]] * 2)
    draft = np.array([[theta, 1.0 - theta], [1.0 - theta, theta]])
    return enumerate_chain([np.array([0.4, 0.6]), second], [np.array([0.8, 0.2]), draft])


def reversed_ranking(first_draft: tuple[float, float]) -> EnumeratedChain:
    """Example 2. Targets (.4, .6), then (.9, .1); the second draft overlaps with it by .9 after A and by .1 after B."""
    second = np.array([[0.9, 0.1]] * 2)
    draft = np.array([[1.0, 0.0], [0.0, 1.0]])
    return enumerate_chain([np.array([0.4, 0.6]), second], [np.array(first_draft), draft])


def gradient_table(certainty: float) -> pd.DataFrame:
    """Value, gradient in theta and its variance over texts, of J, W and the estimators, at theta = 1/2."""
    low, mid, high = (opposite_gradients(0.5 + sign * STEP, certainty) for sign in (-1, 0, 1))
    shares = mid.path_probs
    gaps = [chains.chain_gap(chain.ratios, chain.overlaps, weights=shares) for chain in (low, mid, high)]
    rows = []
    for name, lengths in (("J", [gap.joint_len for gap in gaps]), ("W", [gap.product_len for gap in gaps])):
        rows.append((name, float(lengths[1]), float(lengths[2] - lengths[0]) / (2 * STEP), np.nan))
    for name, estimator in ESTIMATORS.items():
        gradients = (estimator(high) - estimator(low)) / (2 * STEP)
        mean = float(shares @ gradients)
        rows.append((name, float(shares @ estimator(mid)), mean, float(shares @ (gradients - mean) ** 2)))
    return pd.DataFrame(rows, columns=["quantity", "value", "gradient", "variance of the gradient"])


def error_table(certainty: float, samples: tuple[int, ...] = (1, 10, 100, 1000)) -> pd.DataFrame:
    """Mean squared error of the gradient estimators by the number of texts: variance / n + bias squared."""
    table = gradient_table(certainty).set_index("quantity")
    truth = table.loc["J", "gradient"]
    rows = {
        name: [
            table.loc[name, "variance of the gradient"] / n + (table.loc[name, "gradient"] - truth) ** 2
            for n in samples
        ]
        for name in ESTIMATORS
    }
    return pd.DataFrame(rows, index=pd.Index(samples, name="texts")).reset_index()


def ranking_table() -> pd.DataFrame:
    """J, W and C_2 of two drafts that differ at the first position only."""
    rows = []
    for draft in ((0.9, 0.1), (0.1, 0.9)):
        chain = reversed_ranking(draft)
        gap = chains.chain_gap(chain.ratios, chain.overlaps, weights=chain.path_probs)
        values = (*gap.survival, *gap.mean_overlaps, gap.covariances[1], gap.joint_len, gap.product_len)
        rows.append((str(draft), *map(float, values)))
    return pd.DataFrame(rows, columns=["first draft", "S_1", "S_2", "mean a_1", "mean a_2", "C_2", "J", "W"])


def main() -> None:
    """Print all tables."""
    for certainty in (0.9, 0.8, 1.0):
        print(f"Example 1, second target ({certainty:g}, {1 - certainty:g}), theta = 1/2")
        print(gradient_table(certainty).to_string(index=False, na_rep="-", float_format="{:.6f}".format))
        print()
    print("Example 1, second target (0.9, 0.1): mean squared error of the gradient")
    print(error_table(0.9).to_string(index=False, float_format="{:.6f}".format))
    print()
    print("Example 2, second overlap 0.9 after A and 0.1 after B")
    print(ranking_table().to_string(index=False, float_format="{:.6f}".format))


if __name__ == "__main__":
    main()
