"""Who takes part in a comparison of speeds: the target alone, chains, trees, and the transformers library's own loops.

Boundary: a loaded pair and settings in, arms out. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acceptlab.bench.arms import Arm, PlainArm, SpeculativeArm
from acceptlab.bench.library import LibraryArm
from acceptlab.engine import Settings
from acceptlab.errors import UsageError
from acceptlab.pairing import check_pairing
from acceptlab.tree import parse_tree

if TYPE_CHECKING:
    from acceptlab.pairs import Pair

PLAIN, GENERATE, ASSISTED, RECORDS = "plain", "generate", "assisted", "+records"


def parse_lengths(text: str) -> list[int]:
    """Chain lengths of a list such as `1-10` or `1,3,5-7`, each once, in order; empty for an empty text.

    Raises:
        UsageError: not such a list, or a length outside 1 to 64.
    """
    lengths: list[int] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"'{text}' is no list of chain lengths: write 1-10, or 1,3,5")
        lengths += range(int(first), int(last if dash else first) + 1)
    if any(not 1 <= length <= 64 for length in lengths):
        raise UsageError(f"'{text}' holds a chain length outside of 1 to 64")
    return list(dict.fromkeys(lengths))


def own_arms(
    pair: Pair, settings: Settings, lengths: Sequence[int], trees: Sequence[str], recorded: str | None = None
) -> list[Arm]:
    """The target alone, every chain and every tree; and one of them again with records, if asked for.

    Raises:
        UsageError: a tree that does not parse or does not go with the rule.
    """
    quiet = replace(settings, record=False)
    arms: list[Arm] = [PlainArm(pair.target, quiet)]
    for text in (*(f"chain:{length}" for length in lengths), *trees):
        arms.append(_speculative(pair, quiet, text))
    if recorded is not None:
        arms.append(_speculative(pair, replace(settings, record=True), recorded, RECORDS))
    return arms


def _speculative(pair: Pair, settings: Settings, text: str, suffix: str = "") -> SpeculativeArm:
    tree = parse_tree(text)
    check_pairing(settings.rule, tree, settings.proposal)
    return SpeculativeArm(pair, replace(settings, tree=tree), tree.text + suffix)


def library_arms(
    stock: Any, pair: Pair, settings: Settings, lengths: Sequence[int]
) -> tuple[list[Arm], list[str]]:
    """`generate` alone and assisted with chains of these lengths; notes say what cannot take part.

    Args:
        stock: the target as transformers loads it.
        pair: whose draft assists.
        settings: rule and sampling distribution.
        lengths: tokens that the assistant drafts each time.
    """
    from acceptlab.pairs.assistant import assistant_of

    arms: list[Arm] = [LibraryArm(stock, None, settings, GENERATE)]
    try:
        assistant = assistant_of(pair)
    except UsageError as error:
        return arms, [str(error)]
    arms += [LibraryArm(stock, assistant, settings, f"{ASSISTED}:{n}", n) for n in lengths]
    return arms, []
