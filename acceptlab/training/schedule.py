"""How long a run trains and how fast it learns: by steps, or by the seconds that it has trained."""

from __future__ import annotations

import math

from acceptlab.training.settings import TrainSettings


def share_done(step: int, trained_s: float, settings: TrainSettings) -> float:
    """Share of the schedule behind us, from 0 to 1: of the minutes where they are set, else of the steps.

    Steps count from the end of the warm-up, seconds from the beginning.
    """
    if settings.minutes:
        return min(1.0, trained_s / (60 * settings.minutes))
    return min(1.0, (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps))


def learning_rate(step: int, trained_s: float, settings: TrainSettings) -> float:
    """Linear warm-up over steps, then a cosine down to `final_share` of the peak at the schedule's end."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    cosine = 0.5 * (1 + math.cos(math.pi * share_done(step, trained_s, settings)))
    return settings.learning_rate * (settings.final_share + (1 - settings.final_share) * cosine)


def is_over(step: int, trained_s: float, settings: TrainSettings) -> bool:
    """Whether the last step is done, or the time is up."""
    return trained_s >= 60 * settings.minutes if settings.minutes else step >= settings.steps
