"""How long the full audit would take here, from the measured parts of a quick one. Arithmetic on times only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from acceptlab.audit.request import AuditRequest


@dataclass
class Times:
    """Seconds by part of an audit, as far as they were spent now and not kept from before."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """Add the time of a `with` block to a part."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - started

    def of(self, part: str) -> float:
        """Seconds of a part; 0 where it did not run."""
        return self.seconds.get(part, 0.0)


@dataclass(frozen=True)
class Estimate:
    """Minutes of the parts of a full audit."""

    texts: float
    contexts: float
    redrawn: float

    @property
    def total(self) -> float:
        """Minutes of the whole."""
        return self.texts + self.contexts + self.redrawn

    def __str__(self) -> str:
        """One sentence for the reader of a quick audit."""
        return (
            f"without --quick it would take about {self.total:.0f} minutes here: texts {self.texts:.0f}, "
            f"contexts {self.contexts:.0f}, verifiers drawn again {self.redrawn:.0f}, extrapolated from this one"
        )


def full_audit(
    times: Times,
    done: AuditRequest,
    full: AuditRequest,
    *,
    n_new_tokens: int,
    n_contexts: int,
    probed: str,
    probe_s: float,
) -> Estimate | None:
    """The time of a full audit; None where the parts of this one were kept from before.

    Texts grow with their tokens, contexts with their number. Drawing verifiers again does not grow evenly: one case
    is timed as the full audit runs it, in a few contexts, and the others are taken to cost as much more as here.

    Args:
        times: parts `texts`, `identity`, `contexts`, `redrawn`, and the probed case within this audit.
        done: what was audited.
        full: what is asked about.
        n_new_tokens: tokens written now, by all methods together.
        n_contexts: contexts of this audit.
        probed: the probed case.
        probe_s: its seconds a context in the full audit.
    """
    if not n_new_tokens or not times.of("contexts") or not times.of(probed):
        return None
    n_methods = len(full.rules) + 1
    texts_s = times.of("texts") / n_new_tokens * full.n_tokens * n_methods
    longer = full.n_identity * full.max_new_tokens / (done.n_identity * done.max_new_tokens)
    relative = times.of("redrawn") / times.of(probed)
    return Estimate(
        texts=(texts_s + times.of("identity") * longer) / 60.0,
        contexts=times.of("contexts") / n_contexts * full.n_contexts / 60.0,
        redrawn=probe_s * full.n_contexts * relative / 60.0,
    )
