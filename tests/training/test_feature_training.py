"""A feature head that begins with a trained causal drafter, and learns from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from acceptlab.drafters.files import load_drafter
from acceptlab.drafters.heads import FeatureHead
from acceptlab.errors import UsageError
from acceptlab.training.evaluate import evaluate
from acceptlab.training.train import Trainer
from tests.training.helpers import tiny_target
from tests.training.test_train import SETTINGS, make_examples


def test_a_feature_head_begins_at_the_quality_of_its_causal_drafter_and_learns(tmp_path: Path) -> None:
    examples, weight = make_examples(60), tiny_target().embed_tokens.weight
    causal = replace(SETTINGS, layers=(0, 1, -1), steps=2, report_every=2)
    Trainer(tmp_path / "causal", causal, tiny_target(), examples).run()
    start = load_drafter(tmp_path / "causal" / "last", weight)
    settings = replace(
        SETTINGS,
        kind="feature",
        init=str(tmp_path / "causal" / "last"),
        stored_bits=8,
        gamma=2,
        learning_rate=5e-3,
    )
    lines: list[dict] = []
    trainer = Trainer(tmp_path / "head", settings, tiny_target(), examples, lines.append)
    head = trainer.drafter
    assert isinstance(head, FeatureHead)
    assert (head.shape.n_layers, int(head.first_position)) == (3, 2)
    text = trainer.train_examples
    before = [evaluate(d, text, weight, gamma=2).kl for d in (start, head)]
    assert before[0] == pytest.approx(before[1], abs=1e-5)  # float32
    trainer.run()
    assert evaluate(head, text, weight, gamma=2).kl < 0.98 * before[1]
    assert bool(head.fuse_feature.weight.any())
    stored = load_drafter(tmp_path / "head" / "last", weight)
    after = evaluate(stored, trainer.held_out, weight, gamma=2).kl
    assert after == pytest.approx(lines[-1]["kl"], abs=2e-2)  # the rounding to 8 bits
    # a head goes on from a head, too, with the position that it was trained from
    again = Trainer(
        tmp_path / "again", replace(settings, init=str(tmp_path / "head" / "last")), tiny_target(), examples
    )
    assert evaluate(again.drafter, trainer.held_out, weight, gamma=2).kl == pytest.approx(after, abs=1e-6)
    with pytest.raises(UsageError, match="of kind feature, not causal"):
        Trainer(
            tmp_path / "c",
            replace(settings, kind="causal", init=str(tmp_path / "head" / "last")),
            tiny_target(),
            examples,
        )
    with pytest.raises(UsageError, match="of kind causal, not block"):
        Trainer(tmp_path / "b", replace(settings, kind="block"), tiny_target(), examples)
