"""Temperature and truncation of the sampling distributions, as numbers. Standard library only.

Checked here, applied in `sampling`: a wrong number on the command line is told before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from acceptlab.errors import UsageError

GREEDY_TEMPERATURE = 1e-6
"""At or below this temperature the sampling distribution is the argmax."""


@dataclass(frozen=True)
class Warp:
    """Temperature and truncation of a sampling distribution, the same for target and draft.

    `temperature` 0 decodes by argmax; `top_k` None or 0 keeps all tokens; `top_p` 1 keeps all tokens.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature {self.temperature} is not at least 0: use 1, or 0 for argmax")
        if self.top_k is not None and self.top_k < 0:
            raise UsageError(f"top-k {self.top_k} is negative: use 1 or more, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p {self.top_p} is not above 0 and at most 1: use 1 to keep all tokens")

    @property
    def is_greedy(self) -> bool:
        """Whether the sampling distribution is the argmax."""
        return self.temperature <= GREEDY_TEMPERATURE
