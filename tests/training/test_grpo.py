"""Rewards, advantages and the clipped surrogate of the reinforcement stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import UsageError
from acceptlab.training.grpo import advantages, expected_length, grpo_loss, simulated_length
from acceptlab.training.grpo_stage import GrpoOptions, Rollouts, roll_out, rollout_log_probs
from acceptlab.training.train import Trainer
from tests.tiny import tiny_model
from tests.training.helpers import VOCAB, tiny_target
from tests.training.test_train import SETTINGS, make_examples


def full(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def test_mean_reward_of_draft_rollouts_is_the_expected_accepted_length() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]], dtype=torch.float64)
    draft = torch.tensor([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)
    overlaps = torch.minimum(target, draft).sum(-1)
    mean = 0.0
    for tokens in product(range(3), repeat=2):
        q = torch.stack([draft[k, v] for k, v in enumerate(tokens)])
        p = torch.stack([target[k, v] for k, v in enumerate(tokens)])
        mean += float(q.prod() * expected_length(p.log(), q.log(), full(p)))
    # steps are independent here, so the expectation is a_1 + a_1 a_2; sums of nine terms
    assert mean == pytest.approx(float(overlaps[0] + overlaps.prod()), abs=1e-12)


def test_simulated_lengths_stop_at_the_first_rejection_and_at_the_mask() -> None:
    target = torch.tensor([[0.5, 0.5, 0.9], [0.5, 0.5, 0.9]]).log()
    draft = torch.tensor([[0.5, 1.0, 0.1], [0.5, 1.0, 0.1]]).log()
    uniforms = torch.tensor([[0.99, 0.4, 0.9], [0.99, 0.6, 0.1]])
    assert simulated_length(target, draft, full(target), uniforms).tolist() == [3, 1]
    mask = torch.tensor([[True, False, False], [True, True, True]])
    assert simulated_length(target, draft, mask, uniforms).tolist() == [1, 1]


def test_simulated_lengths_average_to_the_expected_length() -> None:
    rng = torch.Generator().manual_seed(0)
    target = torch.tensor([0.2, 0.5, 0.4]).log().expand(40_000, 3)
    draft = torch.tensor([0.5, 0.6, 0.3]).log().expand(40_000, 3)
    simulated = simulated_length(target, draft, full(target), torch.rand(40_000, 3, generator=rng)).double()
    expected = float(expected_length(target[:1], draft[:1], full(target[:1])))
    # four standard errors
    assert abs(float(simulated.mean()) - expected) < 4 * float(simulated.std()) / 200


def test_advantages_are_standardised_within_their_group() -> None:
    found = advantages(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], dtype=torch.float64))
    assert found[0].tolist() == pytest.approx([-1.224745, 0.0, 1.224745], abs=1e-5)
    assert found[1].tolist() == [0.0, 0.0, 0.0]


def test_gradient_at_the_start_is_the_policy_gradient() -> None:
    logs = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], dtype=torch.float64, requires_grad=True)
    gains = torch.tensor([1.0, -2.0], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    loss = grpo_loss(logs, logs, logs, gains, mask, kl_weight=0.5)
    (gradient,) = torch.autograd.grad(loss, logs)
    # the ratio is 1 and the penalty's gradient 0: minus the advantage over the fixed 4 positions
    assert gradient.tolist() == [[-0.25, -0.25], [0.5, 0.0]]


def test_clipping_stops_the_reward_but_not_the_penalty() -> None:
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    logs = torch.tensor([[-0.5]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    loss = grpo_loss(logs, old, old, one, full(old), clip=0.2, kl_weight=0.0)
    assert float(loss.detach()) == pytest.approx(-1.2)
    assert torch.autograd.grad(loss, logs)[0].tolist() == [[0.0]]
    penalised = grpo_loss(logs, old, old, one, full(old), clip=0.2, kl_weight=1.0)
    # d = -0.5: the slope of exp(d) - d - 1 in the log probability is 1 - exp(d)
    assert torch.autograd.grad(penalised, logs)[0].tolist() == [[pytest.approx(1 - 0.6065306597, abs=1e-9)]]
    falling = grpo_loss(logs, old, old, -one, full(old), clip=0.2, kl_weight=0.0)
    assert torch.autograd.grad(falling, logs)[0].tolist() == [[pytest.approx(1.6487212707, abs=1e-9)]]


def make_rollouts() -> tuple[CausalDrafter, Rollouts]:
    output = CutOutput(torch.arange(3, 40), torch.ones(VOCAB), 32)
    drafter = CausalDrafter.from_target(tiny_target(), (0, -1), output)
    contexts = [[5, 6, 7, 8], [5, 9], [5, 10, 11]]
    uniforms = torch.rand(6, 4, generator=torch.Generator().manual_seed(3))
    return drafter, roll_out(drafter, tiny_target(), contexts, uniforms, group=2, eos_id=20)


def test_rollouts_are_scored_as_plain_forwards_score_them() -> None:
    drafter, rollouts = make_rollouts()
    again = rollout_log_probs(drafter, rollouts, group=2).detach()
    # float32, two layers
    torch.testing.assert_close(again, rollouts.draft_log_probs, rtol=0, atol=3e-5)
    model = tiny_model("llama", tie_word_embeddings=True)
    for row in range(6):
        text = rollouts.contexts[row // 2] + rollouts.token_ids[row].tolist()
        with torch.no_grad():
            logs = model(torch.tensor([text])).logits[0].log_softmax(-1)
        own = logs[-5:-1].gather(1, rollouts.token_ids[row][:, None])[:, 0]
        torch.testing.assert_close(own, rollouts.target_log_probs[row], rtol=0, atol=3e-5)
    ends = rollouts.token_ids == 20
    for row, mask in zip(ends.tolist(), rollouts.mask.tolist(), strict=True):
        n_valid = row.index(True) + 1 if any(row) else 4
        assert mask == [place < n_valid for place in range(4)]


def test_a_reinforced_run_moves_the_drafter_and_resumes(tmp_path: Path) -> None:
    examples = make_examples(60)
    Trainer(tmp_path / "a", replace(SETTINGS, steps=6), tiny_target(), examples).run()
    settings = replace(
        SETTINGS,
        steps=4,
        report_every=2,
        stage="grpo",
        init=str(tmp_path / "a" / "last"),
        grpo=GrpoOptions(contexts=3, group=4),
    )
    lines: list[dict] = []
    trainer = Trainer(tmp_path / "b", settings, tiny_target(), examples, lines.append)
    before = {name: tensor.clone() for name, tensor in trainer.drafter.state_dict().items()}
    trainer.run()
    assert [line["step"] for line in lines] == [2, 4]
    assert not torch.equal(before["norm.weight"], trainer.drafter.state_dict()["norm.weight"])
    with pytest.raises(UsageError, match="start from"):
        replace(SETTINGS, stage="grpo")
