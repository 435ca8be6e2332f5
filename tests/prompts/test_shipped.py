"""The 200 prompts of our own: numbers, ids, variety, and where they are found."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from acceptlab.errors import UsageError
from acceptlab.prompts import DOMAINS, Prompt, load_prompts, shipped, shipped_folder
from acceptlab.prompts.check import lengths, repeated_frames, shared_shingles

PROMPTS = load_prompts()


def test_fifty_a_domain_in_the_order_of_the_domains() -> None:
    assert [prompt.domain for prompt in PROMPTS] == [domain for domain in DOMAINS for _ in range(50)]


def test_ids_count_through_each_domain() -> None:
    assert [p.id for p in PROMPTS] == [f"{domain}/{i:02d}" for domain in DOMAINS for i in range(1, 51)]


def test_files_hold_the_stated_keys_and_nothing_else() -> None:
    for domain in DOMAINS:
        for line in (shipped_folder() / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines():
            assert list(json.loads(line)) in (["id", "domain", "prompt"], ["id", "domain", "prompt", "turns"])


def test_no_frame_stands_in_more_than_three_prompts() -> None:
    assert repeated_frames(PROMPTS, more_than=3) == []


def test_no_two_prompts_share_eight_words_in_a_row() -> None:
    assert shared_shingles(PROMPTS, PROMPTS) == []


def test_lengths_go_from_one_line_to_several_paragraphs_in_every_domain() -> None:
    for row in lengths(PROMPTS):
        assert row.min_chars < 80, row
        assert row.max_chars > 1200, row
        paragraphs = [prompt.prompt.count("\n\n") + 1 for prompt in PROMPTS if prompt.domain == row.domain]
        assert paragraphs.count(1) >= 10, row.domain
        assert sum(number >= 3 for number in paragraphs) >= 5, row.domain


def test_the_first_twelve_of_each_domain_are_mixed_in_length() -> None:
    for domain in DOMAINS:
        sizes = [len(prompt.prompt) for prompt in load_prompts(domains=domain, limit=12)]
        assert min(sizes) < 150, domain
        assert max(sizes) > 700, domain


def test_openings_hardly_repeat() -> None:
    first_words = Counter(prompt.prompt.split()[0].lower() for prompt in PROMPTS)
    # a natural text starts many sentences with the article; no verb or question word may dominate like that
    assert first_words.pop("a") <= 25
    assert max(first_words.values()) <= 8


def test_no_leftovers_in_the_texts() -> None:
    for prompt in PROMPTS:
        for text in prompt.turns or (prompt.prompt,):
            assert text == text.strip("\n"), prompt.id
            assert "\r" not in text, prompt.id
            assert text.count("```") % 2 == 0, prompt.id


def test_a_few_prompts_have_further_turns() -> None:
    multi = [prompt for prompt in PROMPTS if prompt.turns]
    assert {prompt.domain for prompt in multi} == set(DOMAINS)
    assert all(prompt.turns and prompt.turns[0] == prompt.prompt for prompt in multi)


def test_the_hash_is_that_of_the_text() -> None:
    # echo -n abc | sha256sum
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert Prompt("x", "chat", "abc", ("abc", "more")).sha256 == expected


def test_a_missing_set_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "site" / "acceptlab" / "prompts" / "shipped.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    with pytest.raises(UsageError, match=r"site.data.prompts.*env.share.acceptlab.prompts"):
        shipped_folder()


def test_an_installed_set_is_found_beside_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "env" / "share" / "acceptlab" / "prompts"
    folder.mkdir(parents=True)
    for domain in DOMAINS:
        (folder / f"{domain}.jsonl").write_text("{}\n")
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "site" / "acceptlab" / "prompts" / "shipped.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert shipped_folder() == folder


def test_licence_and_data_statement_stand_beside_the_files() -> None:
    text = (shipped_folder() / "README.md").read_text(encoding="utf-8")
    assert "CC0-1.0" in text
    assert "Data statement" in text
