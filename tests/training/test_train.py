"""The corpus, the training loop and its settings, on a tiny target whose own text is learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acceptlab.cli import run
from acceptlab.drafters.base import Rows
from acceptlab.drafters.files import load_drafter
from acceptlab.errors import UsageError
from acceptlab.training.chain_losses import branch_value, path_value
from acceptlab.training.corpus import Example, draw_batches, learn_prompts, make_batch, split_examples
from acceptlab.training.evaluate import evaluate
from acceptlab.training.settings import TrainSettings, make_settings, read_settings
from acceptlab.training.train import Trainer
from tests.training.helpers import tiny_target


def make_examples(n: int, seed: int = 0, first: int | None = None) -> list[Example]:
    """Random prompts (with this first token), and outputs sampled from the tiny target, with its features."""
    target, rng = tiny_target(), torch.Generator().manual_seed(seed)
    examples = []
    for item in range(n):
        ids = torch.randint(3, 61, (6,), generator=rng).tolist()
        ids[0] = ids[0] if first is None else first
        prompt_len = len(ids)
        for _ in range(5 + item % 7):
            hidden = hidden_states(ids)
            probs = (hidden[-1] @ target.output_weight.T).softmax(-1)
            ids.append(int(torch.multinomial(probs, 1, generator=rng)))
        hidden = hidden_states(ids)[1:-1]
        norms = (hidden[prompt_len - 2 :] @ target.output_weight.T).logsumexp(-1)
        examples.append(
            Example(item, "chat", np.array(ids), prompt_len, 2, hidden.half().numpy(), norms.float().numpy())
        )
    return examples


@torch.no_grad()
def hidden_states(ids: list[int]) -> torch.Tensor:
    target = tiny_target()
    rotary = target.rotary(torch.arange(len(ids))[None])
    x = target.embed_tokens(torch.tensor([ids]))
    for layer in target.layers:
        x = layer(x, rotary)
    return target.norm(x)[0]


SETTINGS = TrainSettings(
    target="tiny", data=("x",), n_kept=30, steps=12, batch_tokens=40, gamma=4, warmup_steps=2, report_every=6
)


def test_windows_cover_every_output_token_once_and_in_order() -> None:
    examples = make_examples(5)
    batch = make_batch(examples, gamma=4, offsets=[0, 1, 2, 3, 0])
    rows = batch.windows[batch.windows >= 0]
    assert rows.tolist() == list(range(batch.n_tokens))
    lens = (batch.windows >= 0).sum(1).tolist()
    # 5 tokens; 6 after an offset of 1; 7 after 2; 8 after 3; 9
    assert lens == [4, 1, 1, 4, 1, 2, 4, 1, 3, 4, 1, 4, 4, 1]
    for row in range(batch.n_tokens):
        sequence, position = int(batch.rows.sequence[row]), int(batch.rows.position[row])
        assert int(batch.labels[row]) == examples[sequence].token_ids[position + 1]


def test_batches_do_not_depend_on_where_a_run_begins() -> None:
    examples = make_examples(9)
    plain = draw_batches(examples, batch_tokens=20, gamma=4, seed=3)
    resumed = draw_batches(examples, batch_tokens=20, gamma=4, seed=3, start_step=5)
    for _ in range(5):
        next(plain)
    for _ in range(4):
        a, b = next(plain), next(resumed)
        assert torch.equal(a.rows.token_ids, b.rows.token_ids)
        assert torch.equal(a.windows, b.windows)


def test_an_epoch_sees_every_example_once() -> None:
    examples = make_examples(9)
    n_tokens = sum(e.output_len for e in examples)
    batches = draw_batches(examples, batch_tokens=20, gamma=4, seed=0)
    seen = 0
    while seen < n_tokens:
        seen += next(batches).n_tokens
    assert seen == n_tokens


def test_training_raises_the_overlap_and_resumes_where_it_was(tmp_path: Path) -> None:
    examples = make_examples(60)
    lines: list[dict] = []
    whole = Trainer(tmp_path / "a", SETTINGS, tiny_target(), examples, lines.append)
    before = evaluate(whole.drafter, whole.held_out, tiny_target().output_weight, gamma=4).kl
    whole.run()
    assert lines[-1]["kl"] < before
    assert [line["step"] for line in lines] == [6, 12]
    # the same run, interrupted after the sixth step
    cut = Trainer(tmp_path / "b", SETTINGS, tiny_target(), examples)
    cut._report = stop_after_report(cut)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    again = Trainer(tmp_path / "b", SETTINGS, tiny_target(), examples)
    assert again.step == 6
    again.run()
    for name, tensor in whole.drafter.state_dict().items():
        torch.testing.assert_close(again.drafter.state_dict()[name], tensor)
    logged = [json.loads(line) for line in (tmp_path / "b" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == [6, 12]
    best = load_drafter(tmp_path / "a" / "best", tiny_target().embed_tokens.weight)
    assert best.output.n_kept == 30
    scores = whole.score(examples)
    alone = evaluate(best, examples, tiny_target().output_weight, gamma=4)
    assert scores["mean_overlap_over_domains"] == pytest.approx(alone.overlap, rel=1e-9)
    assert scores["chat"]["n_items"] == 60
    with pytest.raises(UsageError, match="seed = 0, not 1"):
        Trainer(tmp_path / "a", replace(SETTINGS, seed=1), tiny_target(), examples)


def stop_after_report(trainer: Trainer):  # noqa: ANN201
    report = trainer._report

    def stopping(loss: float, rate: float) -> None:
        report(loss, rate)
        raise KeyboardInterrupt

    return stopping


@pytest.mark.parametrize("loss", ["real", "dpal", "adaptive-lk", "vsd"])
def test_hot_continuation_with_another_loss(tmp_path: Path, loss: str) -> None:
    examples = make_examples(30)
    Trainer(tmp_path / "a", replace(SETTINGS, steps=2, report_every=2), tiny_target(), examples).run()
    settings = replace(SETTINGS, steps=2, report_every=2, loss=loss, init=str(tmp_path / "a" / "last"))
    hot = Trainer(tmp_path / "b", settings, tiny_target(), examples)
    start = load_drafter(tmp_path / "a" / "last", tiny_target().embed_tokens.weight)
    for name, tensor in start.state_dict().items():
        torch.testing.assert_close(hot.drafter.state_dict()[name], tensor)
    hot.run()
    changed = [n for n, t in hot.drafter.state_dict().items() if not torch.equal(t, start.state_dict()[n])]
    assert "norm.weight" in changed
    assert "output.token_ids" not in changed


def test_a_run_may_grow_the_drafter_it_goes_on_from(tmp_path: Path) -> None:
    examples, weight = make_examples(30), tiny_target().embed_tokens.weight
    Trainer(tmp_path / "a", replace(SETTINGS, steps=2, report_every=2), tiny_target(), examples).run()
    settings = replace(
        SETTINGS, steps=2, report_every=2, init=str(tmp_path / "a" / "last"), grow=(1,), stored_bits=8
    )
    trainer = Trainer(tmp_path / "b", settings, tiny_target(), examples)
    start = load_drafter(tmp_path / "a" / "last", weight)
    before = [evaluate(d, examples, weight, gamma=4).overlap for d in (start, trainer.drafter)]
    assert before[0] == pytest.approx(before[1], abs=1e-6)
    trainer.run()
    stored = load_drafter(tmp_path / "b" / "last", weight)
    assert stored.shape.n_layers == start.shape.n_layers + 1
    after = [evaluate(d, examples, weight, gamma=4).overlap for d in (stored, trainer.drafter)]
    assert after[0] == pytest.approx(after[1], abs=5e-3)  # the rounding to 8 bits
    assert after[0] != after[1]
    with pytest.raises(UsageError, match="grow needs a causal drafter"):
        replace(settings, init="")
    with pytest.raises(UsageError, match="stored_bits is 4"):
        replace(settings, stored_bits=4)


def test_a_run_of_before_a_setting_existed_can_go_on(tmp_path: Path) -> None:
    examples = make_examples(30)
    settings = replace(SETTINGS, steps=2, report_every=2)
    Trainer(tmp_path, settings, tiny_target(), examples).run()
    stored = json.loads((tmp_path / "settings.json").read_text())
    del stored["stored_bits"]
    (tmp_path / "settings.json").write_text(json.dumps(stored))
    assert Trainer(tmp_path, settings, tiny_target(), examples).step == 2
    with pytest.raises(UsageError, match="stored_bits = 16, not 8"):
        Trainer(tmp_path, replace(settings, stored_bits=8), tiny_target(), examples)


def test_held_out_measures_against_a_plain_loop(tmp_path: Path) -> None:
    examples = make_examples(30)
    trainer = Trainer(tmp_path / "a", SETTINGS, tiny_target(), examples)
    measured = evaluate(trainer.drafter, examples, tiny_target().output_weight, gamma=4, batch_items=7)
    overlaps, matches, branch, path = [], [], [], []
    for example in examples:
        accepts, own = [], []
        for at in range(example.prompt_len, len(example.token_ids)):
            ids = torch.from_numpy(example.token_ids[:at])[None]
            rows = trainer.drafter.row_logits(
                Rows(ids, torch.tensor([0]), torch.tensor([at - 1]), torch.tensor([0]))
            )
            draft = trainer.drafter.output.expand(rows).softmax(-1)[0].detach()
            feature = torch.from_numpy(example.features[at - 2].astype(np.float32))
            target = (feature @ tiny_target().output_weight.T).softmax(-1).detach()
            token = int(example.token_ids[at])
            own.append(float(torch.minimum(draft, target).sum()))
            accepts.append(min(1.0, float(draft[token] / target[token])))
            matches.append(float(draft.argmax() == target.argmax()))
        overlaps += own
        for start in range(0, len(own), 4):
            b, a = (torch.tensor([values[start : start + 4]]) for values in (accepts, own))
            branch.append(float(branch_value(b, a, torch.ones_like(b, dtype=torch.bool))))
            path.append(float(path_value(b, torch.ones_like(b, dtype=torch.bool))))
    # float32 sums over a few hundred rows
    assert measured.overlap == pytest.approx(np.mean(overlaps), abs=1e-5)
    assert measured.match == pytest.approx(np.mean(matches), abs=1e-9)
    assert measured.branch == pytest.approx(np.mean(branch), abs=1e-5)
    assert measured.path == pytest.approx(np.mean(path), abs=1e-5)


def test_prompts_become_rows_of_the_first_answer_only(tmp_path: Path) -> None:
    examples = [replace(e, answer=e.item % 2) for e in make_examples(4)]
    widened = learn_prompts(examples, tiny_target().output_weight)
    for old, new in zip(examples, widened, strict=True):
        if old.answer:
            assert new is old
            continue
        assert new.output_len == old.output_len + 4
        batch = make_batch([new], gamma=4, offsets=[0])
        assert batch.labels.tolist() == old.token_ids[2:].tolist()
        norms = (batch.features @ tiny_target().output_weight.T).logsumexp(-1)
        # 16-bit features
        np.testing.assert_allclose(batch.log_norms, norms.detach(), atol=3e-2)


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few"):
        Trainer(tmp_path, SETTINGS, tiny_target(), make_examples(3))


def test_a_folder_begun_otherwise_is_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "s.toml"
    config.write_text('[train]\ntarget = "nowhere"\ndata = ["none"]\nsteps = 7\n')
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.json").write_text('{"target": "nowhere", "data": ["none"], "steps": 8}')
    assert run(["train", str(config), "--output", str(folder)]) == 2
    assert "was begun with steps = 8, not 7: use another output" in capsys.readouterr().err
    assert run(["train", str(config), "--output", str(tmp_path / "new")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_settings_from_toml_and_their_errors(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[train]\ntarget = "t"\ndata = ["d"]\nsteps = 7\n[train.options]\naux = "none"\n')
    settings = read_settings(path, {"loss": "real"})
    assert (settings.steps, settings.loss, settings.options.aux, settings.data) == (7, "real", "none", ("d",))
    for text, message in (
        ('[train]\ntarget = "t"\n', "no 'data'"),
        ('[train]\ntarget = "t"\ndata = ["d"]\nstep = 7\n', "unknown setting 'step'"),
        ('[train]\ntarget = "t"\ndata = ["d"]\nsteps = "7"\n', "steps = '7'"),
        ('[train]\ntarget = "t"\ndata = ["d"]\nsteps = 0\n', "at least 1"),
        ("[other]\n", r"no \[train\] table"),
        ("[train", "no TOML"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_settings(path, {})
    with pytest.raises(UsageError, match="there is no file"):
        read_settings(tmp_path / "none.toml", {})
    with pytest.raises(UsageError, match="unknown loss"):
        make_settings({"target": "t", "data": ["d"], "loss": "x"})


def test_no_prompt_is_both_trained_on_and_held_out() -> None:
    examples = make_examples(30)
    held = examples[24]
    assert held.is_held_out
    # the same prompt under another number, with another answer
    twin = replace(held, item=60, token_ids=np.append(held.token_ids[:-1], held.token_ids[-1] ^ 1))
    other = replace(examples[3], item=61)
    train, held_out = split_examples([*examples, twin, other])
    assert held_out == [held]
    assert [e.item for e in train] == [e.item for e in examples if e.item != 24] + [61]
