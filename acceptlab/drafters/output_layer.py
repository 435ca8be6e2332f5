"""The output layer of the drafters: logits for a cut vocabulary, and one shared logit for the rest.

The output layer dominates a small drafter's cost, and most of the target's mass lies on a few thousand ids.
Those have the target's embedding rows as output weights; all other ids share one logit, and split its
probability by fixed shares. So every id keeps a probability above 0, and divergences from the target stay
finite.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class _CutLinear(torch.autograd.Function):
    """A linear layer of which only the last row and the bias are trained.

    No gradient of the frozen rows is made.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, rest_weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        return grads[0] @ weight, None, grads[0][:, -1] @ hidden, grads[0].sum(dim=0)


class CutOutput(nn.Module):
    """Logits over `n_kept` ids and one rest class.

    Args:
        token_ids: the kept ids, each once.
        rest_shares: how the rest class splits over the whole vocabulary; entries of kept ids are ignored, the
        others
            must be above 0.
        hidden_size: width of the input.
    """

    token_ids: Int[Tensor, " kept"]
    rest_log_shares: Float[Tensor, " vocab"]

    def __init__(
        self, token_ids: Int[Tensor, " kept"], rest_shares: Float[Tensor, " vocab"], hidden_size: int
    ) -> None:
        super().__init__()
        shares = rest_shares.double().clone()
        shares[token_ids] = 0
        shares = shares / shares.sum()
        self.register_buffer("token_ids", token_ids.to(torch.int32))
        self.register_buffer("rest_log_shares", shares.log().float())
        self.rest_weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(len(token_ids) + 1))

    @property
    def n_kept(self) -> int:
        """Ids with a logit of their own."""
        return len(self.token_ids)

    def stack_weight(self, kept_weight: Float[Tensor, "kept size"]) -> Float[Tensor, "classes size"]:
        """The whole output matrix: the target's rows of the kept ids (never trained), then the rest class."""
        return torch.cat([kept_weight, self.rest_weight.detach()[None]])

    def forward(
        self, hidden: Float[Tensor, "rows size"], weight: Float[Tensor, "classes size"]
    ) -> Float[Tensor, "rows classes"]:
        """Logits of the kept ids and, last, of the rest class; `weight` is from `stack_weight`."""
        out: Tensor = _CutLinear.apply(hidden, weight, self.rest_weight, self.bias)  # type: ignore[no-untyped-call]
        return out

    def classes(self, token_ids: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        """Class of every id: its place among the kept ids, or n_kept."""
        table = torch.full_like(self.rest_log_shares, self.n_kept, dtype=torch.long)
        table[self.token_ids.long()] = torch.arange(self.n_kept)
        return table[token_ids]

    def merge(
        self,
        features: Float[Tensor, "rows size"],
        log_norms: Float[Tensor, " rows"],
        kept_weight: Float[Tensor, "kept size"],
    ) -> Float[Tensor, "rows classes"]:
        """The target's probabilities over the same classes, from its hidden states and log normalisers."""
        probs = (features @ kept_weight.T).sub_(log_norms[:, None]).exp_()
        rest = (1 - probs.sum(dim=-1, keepdim=True)).clamp_min_(0)
        merged = torch.cat([probs, rest], dim=-1)
        # Features are stored in 16 bits, so the sum is 1 to about 1e-3 only.
        return merged / merged.sum(dim=-1, keepdim=True)

    def best_tokens(
        self,
        merged: Float[Tensor, "rows classes"],
        features: Float[Tensor, "rows size"],
        output_weight: Float[Tensor, "vocab size"],
    ) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
        """Class of the target's most probable token in every row, and the token's share of that class.

        All ids of the rest class together may outweigh every kept id where none of them alone does, so the
        largest class is not enough: rows where it is the rest class are looked up over the whole vocabulary.

        Args:
            merged: the target's probabilities over the classes, from `merge`.
            features: the target's hidden states.
            output_weight: its output layer.
        """
        classes = merged.argmax(dim=-1)
        shares = torch.ones_like(merged[:, 0])
        unsure = classes == self.n_kept
        ids = (features[unsure] @ output_weight.T).argmax(dim=-1)
        classes[unsure] = self.classes(ids)
        # A kept id's entry is log 0: it is no part of the rest class.
        shares[unsure] = torch.where(classes[unsure] == self.n_kept, self.rest_log_shares[ids].exp(), 1.0)
        return classes, shares

    def expand(self, logits: Float[Tensor, "*rows classes"]) -> Float[Tensor, "*rows vocab"]:
        """Logits over the whole vocabulary: the same distribution, the rest class split by its shares."""
        full = logits[..., -1:] + self.rest_log_shares
        full[..., self.token_ids] = logits[..., :-1]
        return full
