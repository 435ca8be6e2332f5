"""The three roads by enumeration of everything that can happen on toy tables: equal to rounding, faults are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from acceptlab.analysis.roads_sums import SUMS, ScoredText, last_start, text_sums
from acceptlab.errors import UsageError
from acceptlab.toy import random_table

VOCAB, EOS, WINDOW, LIMIT = 3, 2, 2, 4
PROMPT = (0,)
TARGET, DRAFT = random_table(VOCAB, 5, concentration=1.5), random_table(VOCAB, 6, concentration=1.5)
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """One thing that can happen: the text, and every step's start, accepted length and expectation."""

    prob: float
    tokens: Tokens
    steps: tuple[tuple[int, float, float], ...]


def overlap(text: Tokens) -> np.ndarray:
    return np.minimum(TARGET(text), DRAFT(text))


def chains(text: Tokens) -> Iterator[tuple[float, Tokens]]:
    for first, first_prob in enumerate(DRAFT(text)):
        for second, prob in enumerate(DRAFT((*text, first))):
            yield first_prob * prob, (first, second)


def one_step(text: Tokens) -> Iterator[tuple[float, Tokens, float, float]]:
    """Probability, tokens written, accepted length and expectation of every way that a step can go."""
    for chain_prob, chain in chains(text):
        accepts = [
            overlap((*text, *chain[:i]))[token] / DRAFT((*text, *chain[:i]))[token]
            for i, token in enumerate(chain)
        ]
        if EOS in chain:
            accepts = accepts[: chain.index(EOS) + 1]
        reach = np.cumprod(accepts)
        for n in range(len(accepts) + 1):
            prob = chain_prob * (1.0 if n == 0 else reach[n - 1])
            here = (*text, *chain[:n])
            if n == len(accepts):
                if chain[:n][-1] == EOS:
                    yield prob, chain[:n], n, reach.sum()
                    continue
                law = TARGET(here)
            else:
                law = np.maximum(TARGET(here) - DRAFT(here), 0.0)
                prob *= 1.0 - accepts[n]
                law = law / law.sum() if law.sum() > 0 else law
            for token, share in enumerate(law):
                if prob * share > 0:
                    yield prob * share, (*chain[:n], token), n, reach.sum()


def outcomes(tokens: Tokens = (), steps: tuple[tuple[int, float, float], ...] = ()) -> Iterator[Outcome]:
    """Everything that can happen from here on; behind the last start that counts the target writes alone."""
    if len(tokens) >= LIMIT or EOS in tokens:
        yield Outcome(1.0, tokens[:LIMIT], steps)
        return
    text = (*PROMPT, *tokens)
    if len(tokens) > last_start(LIMIT, WINDOW):
        late = (*steps, (len(tokens), 7.0, 7.0))  # must not count
        for token, prob in enumerate(TARGET(text)):
            for rest in outcomes((*tokens, token), late):
                yield replace(rest, prob=prob * rest.prob)
        return
    for prob, new, accepted, expected in one_step(text):
        for rest in outcomes((*tokens, *new), (*steps, (len(tokens), accepted, expected))):
            yield replace(rest, prob=prob * rest.prob)


ALL = list(outcomes())


def scored(outcome: Outcome) -> ScoredText:
    before = [(*PROMPT, *outcome.tokens[:i]) for i in range(len(outcome.tokens))]
    ratios = [min(1.0, DRAFT(t)[x] / TARGET(t)[x]) for t, x in zip(before, outcome.tokens, strict=True)]
    starts, accepted, expected = (np.array([step[i] for step in outcome.steps]) for i in range(3))
    return ScoredText(
        np.array([overlap(text).sum() for text in before]), np.array(ratios), starts, accepted, expected
    )


def expected_sums(
    change: Callable[[ScoredText, Tokens], ScoredText] = lambda text, tokens: text,
    last: Callable[[Tokens], int] = lambda tokens: last_start(LIMIT, WINDOW),
) -> dict[str, float]:
    total = np.zeros(len(SUMS))
    for outcome in ALL:
        text = change(scored(outcome), outcome.tokens)
        total += outcome.prob * text_sums(text, WINDOW, last(outcome.tokens))
    return dict(zip(SUMS, total, strict=True))


def test_everything_that_can_happen_is_enumerated() -> None:
    assert sum(outcome.prob for outcome in ALL) == pytest.approx(1.0, abs=1e-12)
    for before in ((), (0,), (1,), (0, 1)):
        law = np.zeros(VOCAB)
        for outcome in ALL:
            if outcome.tokens[: len(before)] == before:
                law[outcome.tokens[len(before)]] += outcome.prob
        # the decoder is lossless: every next token follows the target
        assert law / law.sum() == pytest.approx(TARGET((*PROMPT, *before)), abs=1e-12)


def test_three_roads_lead_to_one_number_and_positions_to_it_when_reweighted() -> None:
    sums = expected_sums()
    assert sums["expected"] == pytest.approx(sums["accepted"], abs=1e-12)
    assert sums["branch"] == pytest.approx(sums["accepted"], abs=1e-12)
    assert sums["starts"] == pytest.approx(sums["n_roots"], abs=1e-12)
    assert sums["branch_starts"] == pytest.approx(sums["branch"], abs=1e-12)
    by_root = sums["branch"] / sums["n_roots"]
    assert abs(sums["branch_positions"] / sums["n_positions"] - by_root) > 0.01


def test_roots_near_the_limit_have_windows_that_are_cut() -> None:
    sums = expected_sums(last=lambda tokens: LIMIT - 1)
    assert sums["branch"] < sums["accepted"] - 0.1


@pytest.mark.parametrize("fault", ["below the end", "draft's view", "one token late"])
def test_faults_are_seen(fault: str) -> None:
    def change(text: ScoredText, tokens: Tokens) -> ScoredText:
        before = [(*PROMPT, *tokens[:i]) for i in range(len(tokens))]
        if fault == "draft's view":
            wrong = [min(1.0, TARGET(t)[x] / DRAFT(t)[x]) for t, x in zip(before, tokens, strict=True)]
            return replace(text, ratios=np.array(wrong))
        if fault == "below the end" and EOS in tokens:
            more = np.full(WINDOW, 0.5)
            return replace(text, ratios=np.append(text.ratios, more), overlaps=np.append(text.overlaps, more))
        if fault == "one token late":
            return replace(text, overlaps=np.append(text.overlaps[1:], 0.0))
        return text

    sums = expected_sums(change)
    assert abs(sums["branch"] - sums["accepted"]) > 0.01


def test_windows_of_one_token_need_two_places() -> None:
    assert (last_start(10, 5), last_start(10, 1), last_start(3, 5)) == (5, 8, -2)


def test_scores_that_do_not_fit_are_refused() -> None:
    text = ScoredText(np.ones(3), np.ones(3), np.array([0, 3]), np.zeros(2), np.zeros(2))
    with pytest.raises(UsageError, match="begins at 3 of 3 tokens"):
        text_sums(text, 2, 9)
    with pytest.raises(UsageError, match="score the text again"):
        text_sums(replace(text, ratios=np.ones(2)), 2, 9)


def test_a_text_of_certain_acceptance_by_hand() -> None:
    text = ScoredText(
        np.ones(7), np.ones(7), np.array([0, 3, 6]), np.array([2.0, 2, 0]), np.array([2.0, 2, 0])
    )
    found = dict(zip(SUMS, text_sums(text, 2, last_start(7, 2)), strict=True))
    # all accepted: steps begin at 0, 3 and 6, of which the last one has no room for a window
    assert found == {
        "n_roots": 2,
        "accepted": 4,
        "expected": 4,
        "branch": 4,
        "n_positions": 6,
        "branch_positions": 12,
        "starts": 2,
        "branch_starts": 4,
    }
