"""Sampling with the static cache against the plain model, streams, prompts, and the files of trajectories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acceptlab.errors import RunError, UsageError
from acceptlab.training.corpus import load_examples
from acceptlab.training.exchange import export_tokens, import_tokens
from acceptlab.training.generate import ChatFrame, draw_rows, drop_repeats, sample_batch
from acceptlab.training.prompting import (
    choose_opener,
    classify,
    is_usable,
    item_stream,
    load_openers,
    trim_to_sentence,
)
from acceptlab.training.static_cache import StaticDecoder
from acceptlab.training.trajectories import (
    GivenPrompt,
    TrajectorySettings,
    features_path,
    generate_trajectories,
    list_parts,
    open_folder,
    read_part,
)
from tests.tiny import tiny_model
from tests.training.helpers import EOS, CharTokenizer, tiny_target

PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 7], [5, 6, 20, 21, 22, 23, 24, 25]]


def test_static_cache_equals_plain_forwards_for_rows_of_different_lengths() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    decoder = StaticDecoder(tiny_target())
    texts = [list(ids) for ids in PROMPTS]
    start = decoder.prefill(texts, shared_len=2, room=4)
    hidden = torch.stack([start[row, len(ids) - 2] for row, ids in enumerate(texts)])
    for step in range(4):
        for row, ids in enumerate(texts):
            with torch.no_grad():
                plain = model(torch.tensor([ids])).logits[0, -1]
            # float32, two layers
            torch.testing.assert_close(decoder.logits(hidden)[row], plain, rtol=0, atol=2e-5)
        for row, ids in enumerate(texts):
            ids.append(10 + 3 * step + row)
        if step == 1:
            # dropping a row in the middle leaves the others as they are
            decoder.select(torch.tensor([0, 2]))
            texts = [texts[0], texts[2]]
        hidden = decoder.step(torch.tensor([ids[-1] for ids in texts]))


def test_draws_follow_the_distribution_and_its_edges() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]).expand(4, -1)
    probs = logits[0].softmax(-1)
    edge = float(probs[0])
    drawn = draw_rows(logits, torch.tensor([0.0, edge - 1e-4, edge + 1e-4, 1 - 1e-9]))
    assert drawn.token_ids.tolist() == [0, 0, 1, 3]
    torch.testing.assert_close(drawn.log_probs, probs[drawn.token_ids].log())
    torch.testing.assert_close(drawn.log_norms, logits.logsumexp(-1))
    assert draw_rows(logits, None).token_ids.tolist() == [3] * 4


def sample(prompts: list[list[int]], rows: list[int], **options: bool) -> list:
    uniforms = np.stack([item_stream(0, row, "answer0").random(12) for row in rows])
    return sample_batch(
        StaticDecoder(tiny_target()),
        [prompts[row] for row in rows],
        uniforms,
        shared_len=2,
        eos_id=EOS,
        keep_features=True,
        **options,
    )


def test_a_batch_samples_what_its_rows_sample_alone() -> None:
    together = sample(PROMPTS, [0, 1, 2])
    for row in range(3):
        (alone,) = sample(PROMPTS, [row])
        assert alone.token_ids == together[row].token_ids
        np.testing.assert_allclose(alone.features, together[row].features, atol=2e-2)


def test_features_and_scores_belong_to_their_tokens() -> None:
    target = tiny_target()
    for row, result in enumerate(sample(PROMPTS, [0, 1, 2])):
        text = PROMPTS[row] + result.token_ids
        assert result.features.shape == (len(text) - 2, 32)
        n = len(result.token_ids)
        logits = torch.from_numpy(result.features[-n:].astype(np.float32)) @ target.output_weight.T
        own = logits.log_softmax(-1).gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
        # the hidden states are kept in 16 bits
        np.testing.assert_allclose(own.detach(), result.log_probs, atol=3e-2)
        np.testing.assert_allclose(logits.detach().logsumexp(-1), result.log_norms, atol=3e-2)


def test_rows_end_at_eos_and_greedy_needs_no_uniforms() -> None:
    greedy = sample(PROMPTS, [0, 1, 2], greedy=True)
    again = sample_batch(
        StaticDecoder(tiny_target()), PROMPTS, np.zeros((3, 12)), shared_len=2, eos_id=EOS, greedy=True
    )
    assert [r.token_ids for r in greedy] == [r.token_ids for r in again]
    first = greedy[0].token_ids[3]
    cut = sample_batch(
        StaticDecoder(tiny_target()), PROMPTS[:1], np.zeros((1, 12)), shared_len=2, eos_id=first, greedy=True
    )[0]
    assert cut.ended_by_eos
    assert cut.token_ids == greedy[0].token_ids[: greedy[0].token_ids.index(first) + 1]


def test_openers_are_plenty_and_chosen_by_item_and_seed() -> None:
    openers = load_openers()
    assert set(openers) == {"code", "math", "logic", "chat"}
    assert min(len(lines) for lines in openers.values()) >= 25
    chosen = [choose_opener(item, 0, openers) for item in range(40)]
    assert chosen == [choose_opener(item, 0, openers) for item in range(40)]
    assert [c.source for c in chosen[:3]] == ["code", "math", "logic"]
    assert any(c.text == "" for c in chosen)
    assert chosen != [choose_opener(item, 1, openers) for item in range(40)]


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("Write a Python function that adds two numbers.", "code"),
        ("Is the following argument valid? All men are mortal.", "logic"),
        ("Solve for x: 3x + 2 = 11", "math"),
        ("How can I sleep better?", "chat"),
    ],
)
def test_domains_by_keywords(text: str, domain: str) -> None:
    assert classify(text) == domain


def test_usable_prompts_trimming_and_repeats() -> None:
    assert is_usable("How can I sleep better?")
    for broken in (
        "Hi there",
        "aaaaaaaaaaaaaaaaaa",
        "1 2 3 4 5 6 7 8 9 0 = ?",
        "How can <|im_start|> sleep well",
    ):
        assert not is_usable(broken)
    assert trim_to_sentence("One. Two is cut he") == "One."
    assert trim_to_sentence("no end here") == ""
    assert drop_repeats(["A b.", "a B", None, "c d"], {"c d"}) == ["A b.", None, None, None]


def test_a_template_that_rewrites_the_turn_is_refused() -> None:
    class Shouting(CharTokenizer):
        def apply_chat_template(self, *args: object, **options: object) -> str:
            return "|A:HELLO|B:"

    with pytest.raises(UsageError, match="rewrites"):
        ChatFrame.of(Shouting())


SETTINGS = TrajectorySettings("tiny", 3, 2, 8, 0, 4, False, "file", True)
GIVEN = [GivenPrompt("chat", text) for text in ("how are you", "what is a dog", "tell me more")]


def generate(
    folder: Path, settings: TrajectorySettings = SETTINGS, given: list[GivenPrompt] = GIVEN
) -> list[dict]:
    open_folder(folder, settings)
    generate_trajectories(folder, StaticDecoder(tiny_target()), CharTokenizer(), settings, given=given)
    return [row for part in list_parts(folder) for row in read_part(part).to_pylist()]


def test_trajectories_resume_and_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    rows = generate(tmp_path / "a")
    assert [(row["item"], row["answer"]) for row in rows] == [(i, k) for i in range(3) for k in range(2)]
    parts = list_parts(tmp_path / "a")
    assert len(parts) == 2
    before = parts[0].stat().st_mtime_ns
    parts[1].unlink()
    assert generate(tmp_path / "a") == rows
    assert parts[0].stat().st_mtime_ns == before
    other = generate(tmp_path / "b", replace(SETTINGS, batch_size=2))
    assert [row["output_token_ids"] for row in other] == [row["output_token_ids"] for row in rows]
    assert not list(tmp_path.rglob("*.tmp*"))


def test_a_file_of_prompts_that_grows_leaves_none_out(tmp_path: Path) -> None:
    more = [*GIVEN, *(GivenPrompt("chat", text) for text in ("and why", "so what now"))]
    generate(tmp_path)  # two prompts a part: the second one holds the third prompt alone
    rows = generate(tmp_path, given=more)
    assert [row["item"] for row in rows] == [i for i in range(5) for _ in range(2)]
    assert [row["prompt"] for row in rows[::2]] == [prompt.text for prompt in more]


def test_examples_point_at_their_own_features(tmp_path: Path) -> None:
    rows = generate(tmp_path / "a")
    examples = load_examples([tmp_path / "a"], min_output_len=1)
    target = tiny_target()
    assert len(examples) == len(rows)
    for example, row in zip(examples, rows, strict=True):
        assert example.token_ids.tolist() == row["prompt_token_ids"] + row["output_token_ids"]
        features = torch.from_numpy(example.features[-example.output_len :].astype(np.float32))
        norms = (features @ target.output_weight.T).logsumexp(-1)
        np.testing.assert_allclose(norms.detach(), row["target_log_norms"], atol=3e-2)  # 16-bit features


def test_exported_token_ids_get_their_hidden_states_back(tmp_path: Path) -> None:
    rows = generate(tmp_path / "a")
    n_tokens = export_tokens([tmp_path / "a", tmp_path / "a"], tmp_path / "t.parquet")
    assert n_tokens == 2 * sum(len(row["output_token_ids"]) for row in rows)
    (tmp_path / "b").mkdir()
    reports: list[tuple[int, int, int]] = []
    import_tokens(
        tmp_path / "t.parquet",
        tmp_path / "b",
        tiny_target(),
        CharTokenizer().decode,
        batch_size=7,
        report=lambda *counts: reports.append(counts),
    )
    assert reports[-1] == (12, 12, n_tokens)
    old, new = (
        load_examples([tmp_path / "a"], min_output_len=1),
        load_examples([tmp_path / "b"], min_output_len=1),
    )
    assert [e.item for e in new] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for before, after in zip([*old, *old], new, strict=True):
        assert before.token_ids.tolist() == after.token_ids.tolist()
        # float16, and another order of summation
        np.testing.assert_allclose(before.features.astype(float), after.features.astype(float), atol=2e-2)
        np.testing.assert_allclose(before.log_norms, after.log_norms, atol=1e-4)
    with pytest.raises(RunError, match="token ids"):
        import_tokens(
            list_parts(tmp_path / "a")[0].with_suffix(".none"),
            tmp_path / "b",
            tiny_target(),
            str,
            batch_size=1,
        )


def test_other_settings_and_broken_parts_are_refused(tmp_path: Path) -> None:
    generate(tmp_path / "a")
    with pytest.raises(UsageError, match="seed = 0, not 1"):
        open_folder(tmp_path / "a", replace(SETTINGS, seed=1))
    part = list_parts(tmp_path / "a")[0]
    features_path(part).unlink()
    with pytest.raises(UsageError, match="hidden states"):
        load_examples([tmp_path / "a"])
    part.write_bytes(b"PAR1 broken")
    with pytest.raises(RunError, match="part-000000"):
        load_examples([tmp_path / "a"])
    with pytest.raises(UsageError, match="no trajectories"):
        load_examples([tmp_path / "none"])
