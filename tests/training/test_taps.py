"""Hidden states inside the target on disk, and a cross head that is trained on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acceptlab.drafters.cross_head import CrossHead, default_taps
from acceptlab.drafters.files import KINDS, load_drafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import RunError, UsageError
from acceptlab.training.corpus import Example, load_examples
from acceptlab.training.evaluate import evaluate
from acceptlab.training.settings import make_settings
from acceptlab.training.start import tap_layers
from acceptlab.training.static_cache import StaticDecoder
from acceptlab.training.taps import tap_states, write_taps
from acceptlab.training.train import Trainer
from acceptlab.training.trajectories import (
    GivenPrompt,
    TrajectorySettings,
    features_path,
    generate_trajectories,
    list_parts,
    taps_path,
)
from tests.training.helpers import VOCAB, CharTokenizer, tiny_target
from tests.training.test_train import SETTINGS, make_examples

TEXT = TrajectorySettings(
    target="tiny",
    n_prompts=5,
    answers_per_prompt=2,
    max_new_tokens=9,
    seed=0,
    batch_size=4,
    greedy=False,
    prompts="file",
    keep_features=True,
)


def with_taps(examples: list[Example], layers: tuple[int, ...]) -> list[Example]:
    """The same examples with the tiny target's hidden states in front of these layers."""
    found = []
    for example in examples:
        states = tap_states(tiny_target(), [torch.from_numpy(example.token_ids[:-1])], layers)
        found.append(replace(example, taps=tuple(states[layer][0].numpy() for layer in layers)))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    given = [
        GivenPrompt("chat", text) for text in ("say a", "count to three.", "why?", "go on. and on.", "x")
    ]
    folder = tmp_path / "text"
    folder.mkdir()
    generate_trajectories(folder, StaticDecoder(tiny_target()), CharTokenizer(), TEXT, given=given)
    return folder


def test_every_example_has_its_own_states(folder: Path) -> None:
    reports: list[tuple[int, int]] = []
    write_taps([folder], tiny_target(), (1, 0), lambda done, total: reports.append((done, total)))
    assert len(list_parts(folder)) == 3
    assert reports == [(1, 3), (2, 3), (3, 3)]
    # two output tokens at least: shorter ones are left out, and must not shift the others
    examples = load_examples([folder], min_output_len=5, tap_layers=(1, 0))
    assert 0 < len(examples) < len(load_examples([folder], min_output_len=1))
    for example in examples:
        text = torch.from_numpy(example.token_ids[:-1])
        states = tap_states(tiny_target(), [text], (0, 1))
        for found, layer in zip(example.taps, (1, 0), strict=True):
            np.testing.assert_allclose(found, states[layer][0], rtol=1e-3, atol=1e-4)  # 16 bits


def test_what_is_there_is_not_written_again(folder: Path) -> None:
    write_taps([folder], tiny_target(), (1,))
    first, second, third = list_parts(folder)
    taps_path(second, 1).unlink()
    before = taps_path(first, 1).stat().st_mtime_ns
    reports: list[tuple[int, int]] = []
    write_taps([folder], tiny_target(), (1,), lambda done, total: reports.append((done, total)))
    assert reports == [(1, 1)]
    assert taps_path(first, 1).stat().st_mtime_ns == before
    assert taps_path(second, 1).exists()
    assert taps_path(third, 1).exists()
    with pytest.raises(UsageError, match="the target has no layer 2: name taps from 0 to 1"):
        write_taps([folder], tiny_target(), (0, 2))


def test_a_cross_head_learns_and_goes_on(tmp_path: Path) -> None:
    examples = [
        replace(
            e, taps=(tap_states(tiny_target(), [torch.from_numpy(e.token_ids[:-1])], (1,))[1][0].numpy(),)
        )
        for e in make_examples(60)
    ]
    weight = tiny_target().embed_tokens.weight
    settings = replace(
        SETTINGS, kind="cross", layers=(0, 1), taps=(1,), gamma=2, learning_rate=5e-3, diagnose=False
    )
    lines: list[dict] = []
    trainer = Trainer(tmp_path / "head", settings, tiny_target(), examples, lines.append)
    assert isinstance(trainer.drafter, CrossHead)
    assert trainer.drafter.tap_layers == tap_layers(settings, tiny_target()) == (1,)
    before = evaluate(trainer.drafter, trainer.train_examples, weight, gamma=2).kl
    trainer.run()
    assert evaluate(trainer.drafter, trainer.train_examples, weight, gamma=2).kl < 0.9 * before
    stored = load_drafter(tmp_path / "head" / "last", weight)
    after = evaluate(stored, trainer.held_out, weight, gamma=2).kl
    assert after == pytest.approx(lines[-1]["kl"], abs=2e-3)  # 16 bits
    follow = replace(settings, init=str(tmp_path / "head" / "last"), taps=())
    assert tap_layers(follow, tiny_target()) == tap_layers(replace(follow, taps=(1,)), tiny_target()) == (1,)
    with pytest.raises(UsageError, match=r"has taps \[1\], not \[0\]: leave taps out"):
        tap_layers(replace(follow, taps=(0,)), tiny_target())
    again = Trainer(tmp_path / "again", follow, tiny_target(), examples)
    assert evaluate(again.drafter, trainer.held_out, weight, gamma=2).kl == pytest.approx(after, abs=1e-6)


def test_where_a_head_reads_by_default() -> None:
    assert default_taps((0, 1, -2, -1), 30) == (28, 29)
    assert default_taps((0, 14, -1), 30) == (14, 29)
    assert tap_layers(replace(SETTINGS, kind="cross", layers=(0, -1)), tiny_target()) == (1,)
    assert tap_layers(SETTINGS, tiny_target()) == ()
    with pytest.raises(UsageError, match="taps are for drafters of kind cross, not causal"):
        replace(SETTINGS, taps=(1,))


def test_taps_and_layers_that_cannot_be_are_refused_before_the_target_runs() -> None:
    settings = replace(SETTINGS, kind="cross", layers=(0, 1))
    with pytest.raises(UsageError, match="3 taps are more than the 2 layers"):
        replace(settings, taps=(0, 1, 1))
    with pytest.raises(UsageError, match="the target has no layer 40: name layers from -2 to 1"):
        tap_layers(replace(settings, layers=(40, 1), taps=(1,)), tiny_target())
    for kind in KINDS.values():
        with pytest.raises(UsageError, match="the target has no layer -3: name layers"):
            kind.from_target(tiny_target(), (-3,), CutOutput(torch.arange(9), torch.ones(61), 32))
    values = {"target": "tiny", "data": ["text"], "kind": "cross"}
    for wrong in ({"taps": ["1"]}, {"layers": [True]}, {"data": [1]}):
        with pytest.raises(UsageError, match="should be of type tuple"):
            make_settings({**values, **wrong})


def test_trajectories_that_cannot_be_trained_on_are_refused_before_the_target_runs(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty holds no trajectories"):
        write_taps([folder, tmp_path / "empty"], tiny_target(), (1,))
    features_path(list_parts(folder)[-1]).unlink()
    with pytest.raises(UsageError, match="has no hidden states beside it"):
        write_taps([folder], tiny_target(), (1,))
    assert not list(folder.glob("*layer*"))


def test_states_of_other_text_are_refused(folder: Path) -> None:
    write_taps([folder], tiny_target(), (1,))
    first = taps_path(list_parts(folder)[0], 1)
    states = np.load(first)
    np.save(first, states[1:])
    with pytest.raises(
        RunError, match=f"has {len(states) - 1} rows, not the {len(states)} of its part: delete it"
    ):
        load_examples([folder], tap_layers=(1,))
    first.write_bytes(b"no states")
    with pytest.raises(RunError, match=r"cannot read .*layer-1\.npy"):
        load_examples([folder], tap_layers=(1,))


def test_overlap_is_told_by_place_in_the_window() -> None:
    examples = [
        replace(
            e, taps=(tap_states(tiny_target(), [torch.from_numpy(e.token_ids[:-1])], (0,))[0][0].numpy(),)
        )
        for e in make_examples(6)  # outputs of 5 to 10 tokens
    ]
    weight = tiny_target().embed_tokens.weight
    head = CrossHead.from_target(tiny_target(), (0, 1), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32))
    head.tap((0,))
    found = evaluate(head, examples, weight, gamma=4)
    counts = [sum(-(-(e.output_len - place) // 4) for e in examples) for place in range(4)]
    assert sum(counts) == found.n_tokens == 45
    assert sum(c * a for c, a in zip(counts, found.overlap_by_place, strict=True)) == pytest.approx(
        45 * found.overlap, rel=1e-6
    )
    # windows of one token have first places only, here those of the longer windows among others
    first = [evaluate(head, [e], weight, gamma=1).overlap_by_place for e in examples]
    assert sum(e.output_len * a[0] for e, a in zip(examples, first, strict=True)) / 45 == pytest.approx(
        evaluate(head, examples, weight, gamma=1).overlap, rel=1e-6
    )
    assert found.overlap_by_place[0] != pytest.approx(found.overlap_by_place[3], rel=1e-3)
