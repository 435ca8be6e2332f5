"""Weights of the positions of a window.

How much the accepted length hangs on each of them (D-PACE, D-PAL).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from acceptlab.errors import UsageError

DPACE_RHO = 0.5
DPAL_RHO = 0.3


def position_weights(
    alphas: Float[Tensor, "*windows gamma"], rho: float, mask: Bool[Tensor, "*windows gamma"] | None = None
) -> Float[Tensor, "*windows gamma"]:
    """w_t = sum over j >= t of R_j, with R_t the product of s_i = rho + (1 - rho) alpha_i up to t; detached.

    With alpha the draft's probability of the token this is D-PACE (rho 0.5), with the overlap D-PAL (rho
    0.3). Masked positions are left out as if they were not there and get weight 0. Nothing is normalised:
    with rho = 0 the sum of w_t times a loss whose gradient is that of -log alpha_t has exactly the gradient
    of minus the sum of products of alpha; alpha_1 = 0 then zeroes every weight. With rho > 0 the weights are
    no gradient of anything.

    Args:
        alphas: acceptance proxies in [0, 1].
        rho: smoothing in [0, 1].
        mask: valid positions; all where not given.

    Raises:
        UsageError: rho outside [0, 1].
    """
    if not 0 <= rho <= 1:
        raise UsageError(f"rho {rho} is outside [0, 1]: D-PACE uses 0.5, D-PAL 0.3")
    alphas = alphas.detach()
    valid = torch.ones_like(alphas, dtype=torch.bool) if mask is None else mask
    smoothed = torch.where(valid, rho + (1 - rho) * alphas, torch.ones_like(alphas))
    reach = torch.where(valid, smoothed.cumprod(dim=-1), torch.zeros_like(alphas))
    tails = reach.flip(-1).cumsum(dim=-1).flip(-1)
    return torch.where(valid, tails, torch.zeros_like(tails))
