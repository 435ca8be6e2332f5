"""EAL on a cut output: its value and gradient from the formula over the whole vocabulary, in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.training.corpus import make_batch
from acceptlab.training.settings import TrainSettings
from acceptlab.training.train import supervised_loss
from tests.training.helpers import VOCAB, tiny_target
from tests.training.test_train import make_examples

SETTINGS = TrainSettings(target="tiny", data=("x",), loss="eal", gamma=4)


def make_output(n_kept: int) -> CutOutput:
    return CutOutput(torch.arange(3, 3 + n_kept), torch.linspace(1, 3, VOCAB), 32)


def test_the_best_token_is_a_token_and_never_the_rest_class() -> None:
    output = CutOutput(torch.tensor([0, 2]), torch.tensor([1.0, 1.0, 1.0, 3.0, 4.0]), 5)
    # Five ids, whose logits are the features. Kept: 0 and 2.
    probs = torch.tensor(
        [
            [0.30, 0.25, 0.00, 0.25, 0.20],  # rest 0.70, but no id of it is above 0.30
            [0.30, 0.05, 0.10, 0.15, 0.40],  # rest 0.60, id 4 is the best one
            [0.10, 0.05, 0.70, 0.05, 0.10],  # rest 0.20
        ]
    )
    features, weight = (probs + 1e-9).log(), torch.eye(5)
    merged = output.merge(features, torch.zeros(3), weight[[0, 2]])
    assert merged.argmax(dim=-1).tolist() == [2, 2, 1]
    classes, shares = output.best_tokens(merged, features, weight)
    assert classes.tolist() == [0, 2, 1]
    # Shares of the rest class: ids 1, 3 and 4 as 1 to 3 to 4.
    assert shares.tolist() == pytest.approx([1, 4 / 8, 1])


@pytest.mark.parametrize("n_kept", [8, 40])
def test_training_goes_up_the_product_at_the_targets_best_tokens(n_kept: int) -> None:
    target = tiny_target()
    drafter = CausalDrafter.from_target(target, (0, -1), make_output(n_kept))
    batch = make_batch(make_examples(6), gamma=4, offsets=[0, 1, 2, 3, 0, 0])
    loss = float(supervised_loss(drafter, SETTINGS, batch).detach())

    full = drafter.output.expand(drafter.row_logits(batch.rows)).softmax(dim=-1).tolist()
    logits = (batch.features @ target.output_weight.T).tolist()
    best = [row.index(max(row)) for row in logits]
    values = [
        sum(math.prod(full[row][best[row]] for row in window[: k + 1]) for k in range(len(window)))
        for window in ([row for row in rows if row >= 0] for rows in batch.windows.tolist())
    ]
    assert loss == pytest.approx(
        1 - sum(values) / len(values) / 4, abs=1e-6
    )  # sums of a dozen floats of 32 bits


def test_the_best_tokens_matter_where_the_rest_class_is_heavy() -> None:
    """The tiny target puts most of its mass on ids that eight kept ones leave out."""
    drafter = CausalDrafter.from_target(tiny_target(), (0, -1), make_output(8))
    batch = make_batch(make_examples(6), gamma=4, offsets=[0] * 6)
    merged = drafter.output.merge(batch.features, batch.log_norms, drafter.kept_weight)
    heavy = merged.argmax(dim=-1) == drafter.output.n_kept
    assert float(heavy.float().mean()) > 0.5
    # A draft that only knows "something else" has no token to be accepted: its loss is near 1, not near 0.
    with torch.no_grad():
        drafter.output.bias[-1] += 50
    assert float(supervised_loss(drafter, SETTINGS, batch).detach()) > 0.9
