"""The two-sample test: the statistic against scipy, cells blind to the method, and its nominal level."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from acceptlab.audit.two_sample import Labelled, cell_counts, chi_square, permuted_labels, two_sample
from acceptlab.errors import UsageError


def sticky_texts(rng: np.random.Generator, n_prompts: int, shift: float = 0.0) -> list[Labelled]:
    """Two methods, one text each a prompt; a text repeats itself, and prompts differ in what they use."""
    texts = []
    for prompt in range(n_prompts):
        favourite = rng.dirichlet(np.ones(6))
        for is_second in (False, True):
            law = favourite.copy()
            if is_second and shift:
                law = (1 - shift) * law + shift * np.eye(6)[0]
            kinds = rng.choice(6, size=4, p=law)
            texts.append(Labelled(f"p{prompt}", is_second, tuple(int(k) for k in np.repeat(kinds, 5))))
    return texts


def test_the_statistic_equals_scipy() -> None:
    texts = sticky_texts(np.random.default_rng(0), 30)
    counts = cell_counts(texts, min_count=1)
    labels = np.array([text.is_second for text in texts])
    table = np.stack([counts[~labels].sum(axis=0), counts[labels].sum(axis=0)])
    wanted = stats.chi2_contingency(table, correction=False)
    assert chi_square(counts, labels[None])[0] == pytest.approx(wanted.statistic, rel=1e-10)
    found = two_sample(texts, np.random.default_rng(1), min_count=1, n_permutations=19)
    assert (found.dof, found.n) == (wanted.dof, 30 * 2 * 20)


def test_unequal_methods_in_the_statistic() -> None:
    texts = [Labelled("a", False, (1,) * 30 + (2,) * 10), Labelled("a", True, (1,) * 5 + (2,) * 15)]
    counts = cell_counts(texts, min_count=1)
    wanted = stats.chi2_contingency([[30, 10], [5, 15]], correction=False).statistic
    assert chi_square(counts, np.array([[False, True]]))[0] == pytest.approx(wanted, rel=1e-10)


def test_rare_tokens_are_pooled_blind_to_the_method() -> None:
    texts = [Labelled("a", False, (1,) * 12 + (2, 3)), Labelled("a", True, (1,) * 4 + (4,) * 9 + (5,) * 11)]
    counts = cell_counts(texts, min_count=10)
    # tokens 1 and 5 stand alone, the others are one cell
    assert counts.tolist() == [[12, 0, 2], [4, 11, 9]]
    swapped = [Labelled(text.prompt_id, not text.is_second, text.token_ids) for text in texts]
    assert np.array_equal(cell_counts(swapped, min_count=10), counts)


def test_labels_move_within_a_prompt_only() -> None:
    texts = [
        Labelled("a", False, (1,)),
        Labelled("a", True, (1,)),
        Labelled("a", True, (1,)),
        Labelled("b", True, (1,)),
    ]
    labels = permuted_labels(texts, 200, np.random.default_rng(0))
    assert (labels[:, :3].sum(axis=1) == 2).all()
    assert labels[:, 3].all()
    # each of the three texts is the odd one out about as often
    odd = (~labels[:, :3]).sum(axis=0)
    assert odd.min() > 40


def test_level_is_nominal_although_tokens_of_a_text_depend_on_each_other() -> None:
    rng = np.random.default_rng(2)
    p_values, naive = [], []
    for _ in range(300):
        found = two_sample(sticky_texts(rng, 25), rng, min_count=5, n_permutations=99)
        p_values.append(found.p_value)
        naive.append(stats.chi2.sf(found.statistic, found.dof))
    # standard error 0.013 at 5%
    assert 0.005 < np.mean(np.array(p_values) <= 0.05) < 0.1
    # the law for independent tokens would have cried wolf most of the time
    assert np.mean(np.array(naive) <= 0.05) > 0.5


def test_a_method_that_prefers_a_token_is_caught() -> None:
    rng = np.random.default_rng(3)
    found = two_sample(sticky_texts(rng, 120, shift=0.3), rng, n_permutations=199)
    assert found.p_value <= 0.01


def test_equal_texts_give_one() -> None:
    texts = [Labelled(f"p{i}", side, (1, 1, 2)) for i in range(5) for side in (False, True)]
    assert two_sample(texts, np.random.default_rng(0), min_count=1, n_permutations=50).p_value == 1.0


def test_nothing_to_compare_is_refused() -> None:
    texts = [Labelled("a", False, (1, 2)), Labelled("b", True, (1, 2)), Labelled("a", True, ())]
    with pytest.raises(UsageError, match="no prompt has texts of both methods"):
        two_sample(texts, np.random.default_rng(0))
