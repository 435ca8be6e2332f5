"""Gradient variance of branch against path: exact on an enumerable model, and the code against a plain loop."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.training.chain_losses import accept_probs, branch_terms, path_terms
from acceptlab.training.corpus import make_batch
from acceptlab.training.diagnostics import gradient_variance, rollout_length
from tests.training.helpers import VOCAB, tiny_target
from tests.training.test_train import make_examples


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_reference_gradient_variances() -> None:
    # laws of the first step (.4, .6) and (.8, .2), of the second (.9, .1) and (s, 1 - s) or, after B, (1 - s, s)
    slope = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    first_target, first_draft = double(0.4, 0.6), double(0.8, 0.2)
    second_target = double(0.9, 0.1)
    weights, gradients = [], {"path": [], "branch": []}
    for x, y in product(range(2), range(2)):
        second_draft = torch.stack([slope, 1 - slope]) if x == 0 else torch.stack([1 - slope, slope])
        b = torch.stack(
            [
                accept_probs(first_draft[x].log(), first_target[x].log()),
                accept_probs(second_draft[y].log(), second_target[y].log()),
            ]
        )[None]
        a = torch.stack([double(0.6)[0], torch.minimum(second_draft, second_target).sum()])[None]
        mask = torch.ones(1, 2, dtype=torch.bool)
        weights.append(float(first_target[x] * second_target[y]))
        for name, value in (("path", path_terms(b, mask)), ("branch", branch_terms(b, a, mask))):
            gradients[name].append(float(torch.autograd.grad(value.sum(), slope, retain_graph=True)[0]))
    for name, variance in (("path", 0.478519), ("branch", 0.426667)):
        mean = np.average(gradients[name], weights=weights)
        assert abs(mean - 0.2) < 1e-9
        # the reference is given to six places
        assert abs(np.average((np.array(gradients[name]) - mean) ** 2, weights=weights) - variance) < 1e-6


def test_rollouts_and_teacher_forcing_estimate_the_same_length() -> None:
    # half of the ids share one logit: merged into one class, they would overlap far more
    output = CutOutput(torch.arange(0, 60, 2), torch.ones(VOCAB), 32)
    drafter = CausalDrafter.from_target(tiny_target(), (0,), output)
    examples = make_examples(60, first=5)
    measured = rollout_length(drafter, tiny_target(), examples, gamma=3, eos_id=-1, max_contexts=60, group=8)
    assert measured.n_contexts == 60
    assert abs(measured.teacher_forced - measured.rollout) < 3 * measured.difference_se
    assert measured.difference_se < 0.1
    assert 0 < measured.rollout < 3


def test_variances_against_a_plain_loop() -> None:
    examples = make_examples(20)
    output = CutOutput(torch.arange(3, 40), torch.ones(VOCAB), 32)
    drafter = CausalDrafter.from_target(tiny_target(), (0,), output)
    measured = gradient_variance(drafter, examples, gamma=3, max_windows=9)
    rows = []
    for example in examples:
        batch = make_batch([example], gamma=3, offsets=[0])
        labels = output.classes(batch.labels)
        for start in range(0, example.output_len - 2, 3):
            if len(rows) == 9:
                break
            logits = drafter.row_logits(batch.rows)
            window = slice(start, start + 3)
            draft = logits[window].softmax(-1)
            target = output.merge(batch.features, batch.log_norms, drafter.kept_weight)[window]
            own = labels[window, None]
            b = (draft.gather(1, own) / target.gather(1, own))[:, 0].clamp(max=1)
            a = torch.minimum(draft, target).sum(-1)
            path = [torch.prod(b[: k + 1]) for k in range(3)]
            branch = [torch.prod(b[:k]) * a[k] for k in range(3)]
            grads = [
                torch.autograd.grad(t, drafter.norm.weight, retain_graph=True)[0] for t in (*path, *branch)
            ]
            rows.append(torch.stack(grads).double())
    stacked = torch.stack(rows).view(9, 2, 3, -1)
    expected = stacked.var(dim=0).sum(-1)
    # float32 gradients
    np.testing.assert_allclose(measured.path, expected[0], rtol=1e-3)
    np.testing.assert_allclose(measured.branch, expected[1], rtol=1e-3)
    total = stacked.sum(2).var(dim=0).sum(-1)
    np.testing.assert_allclose([measured.aggregate_path, measured.aggregate_branch], total, rtol=1e-3)
    assert measured.n_windows == 9
