"""The pass that verifies a tree, as the engine runs it and as plain transformers would: same tokens, mask, positions.

Boundary: a loaded pair in, two `Passes` out, and how far their logits are apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.models import LanguageModel
from acceptlab.tree import Tree


class EngineTree:
    """The tree below the last token of a text, through the protocol that the engine uses."""

    def __init__(self, model: LanguageModel, token_ids: Sequence[int], tree: Tree, name: str) -> None:
        self._model, self.name, self.device = model, name, model.device
        self._past = len(token_ids) - 1
        self._inputs = _inputs(token_ids, tree)
        model.reset()
        model.prefill(torch.tensor(list(token_ids[:-1])))

    def run(self, n: int) -> Float[Tensor, "rows vocab"]:
        """One pass over the root and the nodes, whatever n."""
        return self._model.forward(*self._inputs)

    def rewind(self) -> None:
        """Back to the text without its last token."""
        self._model.keep(torch.arange(self._past))


class StockTree:
    """The same on the transformers model itself, with its own cache and an additive mask: nothing of ours."""

    def __init__(self, model: Any, token_ids: Sequence[int], tree: Tree, name: str) -> None:
        self._model, self.name, self.device = model, name, model.device
        self._past = len(token_ids) - 1
        tokens, positions, visible = _inputs(token_ids, tree)
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill_(
            ~visible, torch.finfo(model.dtype).min
        )
        self._options: dict[str, Any] = {
            "input_ids": tokens[None].to(self.device),
            "position_ids": positions[None].to(self.device),
            "attention_mask": mask[None, None].to(self.device),
        }
        # transformers 5.2x renamed the argument; the old name warns there
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        with torch.inference_mode():
            text = torch.tensor([list(token_ids[:-1])], device=self.device)
            self._cache = model(input_ids=text, use_cache=True)[self._cache_name]

    @torch.inference_mode()
    def run(self, n: int) -> Float[Tensor, "rows vocab"]:
        """One pass over the root and the nodes, whatever n."""
        output = self._model(**self._options, **{self._cache_name: self._cache}, use_cache=True)
        logits: Tensor = output.logits[0]
        return logits

    def rewind(self) -> None:
        """Cut the cache back to the text without its last token."""
        surplus = self._cache.get_seq_length() - self._past
        if surplus:
            self._cache.crop(-surplus)


def _inputs(token_ids: Sequence[int], tree: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and what every row sees, the root first; the nodes repeat tokens of the text."""
    past = len(token_ids) - 1
    nodes = (list(token_ids) * (1 + tree.n_nodes // len(token_ids)))[: tree.n_nodes]
    tokens = torch.tensor([token_ids[-1], *nodes])
    positions = past + torch.tensor([0, *tree.depths.tolist()])
    visible = torch.cat(
        [torch.ones((tree.n_nodes + 1, past), dtype=torch.bool), torch.from_numpy(tree.visible)], dim=1
    )
    return tokens, positions, visible


def logits_apart(one: EngineTree | StockTree, other: EngineTree | StockTree) -> float:
    """Largest difference between the logits of two such passes."""
    results = []
    for passes in (one, other):
        results.append(passes.run(0).float().cpu())
        passes.rewind()
    return float((results[0] - results[1]).abs().max())
