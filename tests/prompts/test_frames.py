"""The check of variety finds what it is there to find."""

from __future__ import annotations

from acceptlab.prompts import Prompt
from acceptlab.prompts.check import Lengths, lengths, repeated_frames, shared_shingles


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(f"x/{i}", "tea", text) for i, text in enumerate(texts)]


def test_openings_ignore_case_and_punctuation() -> None:
    found = repeated_frames(prompts("How do I, boil it?", "how do i boil milk", "How do we boil it?"), 1)
    assert [(frame.kind, frame.words, frame.prompt_ids) for frame in found] == [
        ("opening", "how do i boil", ("x/0", "x/1"))
    ]


def test_sentences_with_other_numbers_names_and_quotations_are_one_frame() -> None:
    texts = (
        'Listen. Give 3 cups to Ann and say "here".',
        'Now then: Give 12 cups to Tom and say "there you are".',
        "First things first.\nGive 1,250 cups to Ben and say `x = 1`.",
        'Give twelve cups to Tom and say "no".',
    )
    (frame,) = [frame for frame in repeated_frames(prompts(*texts), 2) if frame.kind == "sentence"]
    assert frame.words == "give # cups to @ and say ~"
    assert frame.prompt_ids == ("x/0", "x/1", "x/2")


def test_a_frame_counts_once_a_prompt_and_not_inside_code() -> None:
    repeated = "Boil the water now. Boil the water now. Boil the water now."
    code = "```\nboil the water now\n```"
    assert [f.kind for f in repeated_frames(prompts(repeated, f"See:\n{code}", f"Well:\n{code}"), 1)] == []
    assert [f.kind for f in repeated_frames(prompts(repeated, "So. Boil the water now."), 1)] == ["sentence"]


def test_later_turns_are_looked_at() -> None:
    both = [
        Prompt("x/0", "tea", "One", ("One", "Now do it in French, please.")),
        Prompt("x/1", "tea", "Two", ("Two", "Now do it in Dutch, please.")),
    ]
    (frame,) = repeated_frames(both, 1)
    assert frame.words == "now do it in @ please"
    assert shared_shingles(both, both) == []
    assert shared_shingles(both, both, 4) == [
        ("x/1", "x/0", "now do it in"),
        ("x/0", "x/1", "now do it in"),
    ]


def test_shingles_need_their_full_length() -> None:
    words = "one two three four five six seven eight"
    assert shared_shingles(prompts(f"{words} nine"), prompts(f"Zero, {words}!")) == [("x/0", "x/0", words)]
    assert shared_shingles(prompts(words), prompts(words.replace("eight", "ate"))) == []


def test_lengths_by_domain() -> None:
    rows = [*prompts("abc", "a"), Prompt("y", "milk", "abcd", ("abcd", "e"))]
    assert lengths(rows) == [Lengths("tea", 2, 0, 1, 2.0, 3), Lengths("milk", 1, 1, 4, 4, 4)]
