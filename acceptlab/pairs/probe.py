"""A small tree against plain forwards, before a run: does this model take masks and positions as given?

Architectures differ in what they do with a 4-D mask or with explicit positions, and most mistakes are silent.
The probe costs five short passes and turns such a model into a refusal.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from acceptlab.errors import UsageError
from acceptlab.models import LanguageModel

N_PROMPT = 6
PROBE_LEN = 9
"""Positions that the probe takes."""
FLOAT32_LIMIT = 1e-3
LOW_PRECISION_LIMIT = 0.25
_PARENTS = (-1, -1, 0, 1)
"""The root's children, then one child of each: index differs from depth, and there is a second sibling."""
_PATHS = ((), (0,), (1,), (0, 2), (1, 3))


def plain_rows(model: PreTrainedModel) -> list[Float[Tensor, " vocab"]]:
    """What plain forwards without a cache say in the contexts that `probe` looks at.

    Apart from it, since a model that is packed keeps its weights twice for as long as both are in use.
    """
    text, tokens = _tokens(model)
    paths = [torch.cat([text, tokens[list(path)]]) for path in _PATHS]
    return [_plain(model, path) for path in (*paths, torch.cat([paths[-1], text[:1]]))]


def probe(
    cached: LanguageModel, model: PreTrainedModel, name: str, expected: list[Float[Tensor, " vocab"]]
) -> float:
    """Run a tree of four nodes and a step after it, and compare with forwards without a cache.

    Args:
        cached: the model behind the protocol; its cache is emptied.
        model: the same model, plain.
        name: what the user called it.
        expected: `plain_rows` of the model.

    Returns:
        The largest total variation distance seen between two distributions that should be equal.

    Raises:
        UsageError: above 1e-3 in float32 or 0.25 in a lower precision (rounding alone reaches some hundredths
        there).
    """
    text, tokens = _tokens(model)
    cached.reset()
    cached.prefill(text[:-1])
    depths = [_depth(node) for node in range(len(_PARENTS))]
    positions = N_PROMPT - 1 + torch.tensor([0, *depths])
    among = torch.zeros((len(_PATHS), len(_PATHS)), dtype=torch.bool)
    for row, path in enumerate(_PATHS):
        among[row, [0, *(node + 1 for node in path)]] = True
    visible = torch.cat([torch.ones((len(_PATHS), N_PROMPT - 1), dtype=torch.bool), among], dim=1)
    rows = cached.forward(torch.cat([text[-1:], tokens]), positions, visible)
    worst = 0.0
    for row, plain in zip(rows, expected[:-1], strict=True):
        worst = max(worst, _distance(row, plain))
    # accept through the second sibling, then one more token
    path = _PATHS[-1]
    slots = N_PROMPT + torch.tensor(path)
    cached.keep(torch.cat([torch.arange(N_PROMPT), slots]))
    length = cached.n_slots
    following = cached.forward(
        text[:1], torch.tensor([length]), torch.ones((1, length + 1), dtype=torch.bool)
    )
    worst = max(worst, _distance(following[0], expected[-1]))
    cached.reset()
    limit = FLOAT32_LIMIT if model.dtype == torch.float32 else LOW_PRECISION_LIMIT
    # written so that a difference that is not a number is refused too
    if not worst <= limit:
        raise UsageError(
            f"'{name}' ({model.config.model_type}) gives other distributions in a tree than token by token "
            f"(apart by {worst:.2g}), so it does not take masks or positions as given: use another model"
        )
    return worst


def _tokens(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """A prompt and four drafted tokens, spread over the vocabulary."""
    n_ids = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(N_PROMPT + len(_PARENTS)) * max(1, n_ids // 13) % n_ids
    return ids[:N_PROMPT], ids[N_PROMPT:]


def _depth(node: int) -> int:
    return 0 if node < 0 else 1 + _depth(_PARENTS[node])


@torch.inference_mode()
def _plain(model: PreTrainedModel, token_ids: Tensor) -> Float[Tensor, " vocab"]:
    logits: Tensor = model(token_ids.to(model.device)[None], use_cache=False).logits[0, -1]
    return logits.float()


def _distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.softmax(-1) - theirs.softmax(-1)).abs().sum() / 2)
