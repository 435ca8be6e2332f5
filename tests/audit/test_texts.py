"""Texts of the audit on table models: right rules pass, another target is caught, files survive an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acceptlab.audit.contexts import choose_places, collect_contexts, load_contexts, save_contexts
from acceptlab.audit.run import text_rows
from acceptlab.audit.texts import TARGET_ALONE, AuditText, Question, TextFolder, interleaved, write_texts
from acceptlab.errors import RunError, UsageError
from acceptlab.prompts import Prompt
from acceptlab.toy import TableModel
from tests.audit.helpers import EOS, QUESTIONS, TREES, VOCAB, TableReference, files, toy_writer

CONFIG = {"pair": "toy", "seed": 0}


def write(
    folder: Path, n_tokens: int, methods: tuple[str, ...] = (TARGET_ALONE, *TREES), **options: Any
) -> dict[str, list[AuditText]]:
    writer = toy_writer(**options)
    return write_texts(writer, QUESTIONS, methods, n_tokens, TextFolder(folder, CONFIG))


def test_right_rules_pass_with_ends_and_limits(tmp_path: Path) -> None:
    texts = write(tmp_path, 200)
    ends = [text.token_ids[-1] == EOS for text in texts["rejection"]]
    lens = {len(text.token_ids) for text in texts["rejection"]}
    assert 0.2 < np.mean(ends) < 0.95, "texts that end by themselves and by the limit"
    assert max(lens) == 12
    assert min(lens) < 6
    rows = text_rows(texts, 200, seed=0)
    assert len(rows) == 2 * 5 + 4
    assert all(row.verdict == "pass" for row in rows), [row for row in rows if row.verdict != "pass"]
    assert {row.n for row in rows if row.test == "chi-square"} == {200}


def test_the_end_of_text_is_transformed_too(tmp_path: Path) -> None:
    texts = write(tmp_path, 100, ("rejection",))["rejection"]
    assert any(text.token_ids[-1] == EOS for text in texts)
    assert all(EOS not in text.token_ids[:-1] for text in texts)
    assert all(len(text.transforms) == len(text.token_ids) for text in texts)


def test_lower_temperature_passes(tmp_path: Path) -> None:
    texts = write(tmp_path, 200, (TARGET_ALONE, "rejection", "onehot"), temperature=0.7)
    assert all(row.verdict == "pass" for row in text_rows(texts, 200, seed=0))


def test_a_decoder_that_follows_another_target_is_caught(tmp_path: Path) -> None:
    texts = write(tmp_path, 400, (TARGET_ALONE, "rejection"), written_by_another=True)
    verdicts = {(row.what, row.test): row.verdict for row in text_rows(texts, 400, seed=0)}
    assert verdicts["rejection, transform", "chi-square"] == "FAIL"
    assert verdicts["target alone, transform", "chi-square"] == "pass"


def test_an_impossible_token_fails() -> None:
    points = tuple(np.random.default_rng(0).random(200).tolist())
    good = AuditText("rejection", 0, "a", (1,), (2,) * 200, points)
    texts = {
        TARGET_ALONE: [replace(good, method=TARGET_ALONE)],
        "rejection": [replace(good, points=(None, *points[1:]))],
    }
    failed = [row for row in text_rows(texts, 200, seed=0) if row.verdict == "FAIL"]
    assert [(row.test, row.statistic) for row in failed] == [("impossible tokens", 1)]


def test_an_interrupted_audit_goes_on_and_writes_the_same(tmp_path: Path) -> None:
    methods = ("rejection", "onehot")
    whole = write(tmp_path / "whole", 90, methods)
    write(tmp_path / "parts", 40, methods)
    kept = files(tmp_path / "parts")
    last = sorted(name for name in kept if "onehot" in name)[-1]
    (tmp_path / "parts" / last).unlink()
    assert write(tmp_path / "parts", 90, methods) == whole
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    # nothing is decoded twice
    writer = toy_writer()
    write_texts(writer, QUESTIONS, methods, 90, TextFolder(tmp_path / "parts", CONFIG))
    assert isinstance(writer.reference, TableReference)
    assert writer.reference.n_forwards == 0


def test_progress_counts_wanted_tokens(tmp_path: Path) -> None:
    seen: list[int] = []
    write_texts(
        toy_writer(), QUESTIONS, ["rejection", "onehot"], 50, TextFolder(tmp_path, CONFIG), seen.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == 100


def test_the_folder_of_another_audit_is_refused(tmp_path: Path) -> None:
    TextFolder(tmp_path, CONFIG)
    TextFolder(tmp_path, CONFIG)
    with pytest.raises(UsageError, match="audit with seed 0, not 1"):
        TextFolder(tmp_path, {**CONFIG, "seed": 1})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, 60, ("onehot",))
    path = tmp_path / "texts" / "onehot" / "00000.json"
    path.write_text(path.read_text()[:-4])
    with pytest.raises(RunError, match="00000.json' cannot be read"):
        write(tmp_path, 60, ("onehot",))
    assert json.loads((tmp_path / "audit.json").read_text()) == CONFIG


def test_prompts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = TextFolder(tmp_path, CONFIG)
    with pytest.raises(UsageError, match="no prompt fits"):
        write_texts(toy_writer(), [], ["onehot"], 10, folder)
    writer = toy_writer()
    short = replace(writer, target=TableModel(lambda text: np.full(VOCAB, 1 / VOCAB), VOCAB, max_len=8))
    with pytest.raises(RunError, match="'long' does not fit"):
        write_texts(short, [Question("long", (1,) * 5)], ["rejection"], 100, folder)


def test_prompts_come_in_turn_from_every_domain() -> None:
    prompts = [
        Prompt(f"{domain}{i}", domain, "x") for domain in ("a", "b") for i in range(3 if domain == "a" else 1)
    ]
    assert [prompt.id for prompt in interleaved(prompts)] == ["a0", "b0", "a1", "a2"]


def test_contexts_are_the_rows_of_their_texts(tmp_path: Path) -> None:
    texts = write(tmp_path, 200, (TARGET_ALONE,))[TARGET_ALONE]
    reference = toy_writer().reference
    contexts = collect_contexts(reference, texts, 30, seed=0)
    assert contexts.n_contexts == 32
    places = choose_places([len(text.token_ids) for text in texts], 30, seed=0)
    assert len(set(places)) == 8
    assert places == sorted(places)
    for stretch, (index, start) in enumerate(places):
        text = texts[index]
        for depth in range(4):
            prefix = (*text.prompt_ids, *text.token_ids[: start + depth])
            assert contexts.target[stretch, depth].equal(reference.target_logits(prefix, len(prefix))[0])
            assert contexts.draft[stretch, depth].equal(reference.draft_logits(prefix, len(prefix))[0])


def test_contexts_are_kept(tmp_path: Path) -> None:
    assert load_contexts(tmp_path) is None
    texts = write(tmp_path / "texts", 100, (TARGET_ALONE,))[TARGET_ALONE]
    contexts = collect_contexts(toy_writer().reference, texts, 16, seed=0)
    save_contexts(tmp_path, contexts)
    loaded = load_contexts(tmp_path)
    assert loaded is not None
    assert loaded.target.equal(contexts.target)
    assert loaded.draft.equal(contexts.draft)
    (tmp_path / "contexts-target.npy").write_bytes(b"half a file")
    with pytest.raises(RunError, match="cannot be read"):
        load_contexts(tmp_path)
    with pytest.raises(UsageError, match="raise --n-tokens"):
        choose_places([5, 3], 8, seed=0)
