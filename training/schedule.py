"""The trainer's schedules over a run: learning rate and context length."""

import dataclasses
import math

import numpy as np

MIN_LR_SHARE = 0.05  # share of the peak at the end of the cosine
# Mixed lengths differ by multiples of this: oneDNN compiles its products for every new shape, which
# takes longer than computing them, and caches them for later use.
LENGTH_STEP = 256


def learning_rate(peak, progress, step, warmup_steps):
    """Linear warm-up over optimizer steps, then a cosine over progress (0 at the start, 1 at the
    end)."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return peak * min(1.0, (step + 1) / max(1, warmup_steps)) * (
        MIN_LR_SHARE + (1 - MIN_LR_SHARE) * cosine)


@dataclasses.dataclass(frozen=True)
class Phase:
    """Contexts of `length` tokens until the share `end` of the run; max_centroids None: the
    config's.

    shortest: if set, every optimizer step draws its context length: `length` or a multiple of
    LENGTH_STEP less, but not below shortest."""
    length: int
    end: float
    max_centroids: int | None = None
    shortest: int | None = None

    def length_at(self, seed, step):
        """Returns the context length of a step: one draw for each step, the same in a resumed run.
        """
        if self.shortest is None:
            return self.length
        random = np.random.default_rng((seed, step, self.length))
        return int(random.choice(range(self.length, self.shortest - 1, -LENGTH_STEP)))


def _parse_phase(entry, begin):
    try:
        lengths, share, *centroids = entry.split(":")
        *shortest, length = map(int, lengths.split("-"))
        shortest, share = int(*shortest) if shortest else None, float(share)
        max_centroids = int(*centroids) if centroids else None
    except (TypeError, ValueError):
        raise ValueError(
            f"--phases: {entry!r} is not [SHORTEST-]LENGTH:SHARE[:CENTROIDS]") from None
    if length < 1 or not share > 0 or (max_centroids is not None and max_centroids < 1):
        raise ValueError(f"--phases: {entry!r}: every number must be positive")
    if shortest is not None and not 0 < shortest < length:
        raise ValueError(f"--phases: {entry!r}: {shortest} is not from 1 to {length - 1}")
    return Phase(length, begin + share, max_centroids, shortest)


def parse_phases(text):
    """Parses "512:0.6,500-2048:0.4:256": two Phases that end at 0.6 and 1."""
    phases = []
    for entry in text.split(","):
        phases.append(_parse_phase(entry, phases[-1].end if phases else 0.0))
    if abs(phases[-1].end - 1) > 1e-6:
        raise ValueError(f"--phases: shares add up to {phases[-1].end:g}, not to 1")
    return phases


def phase_at(phases, progress):
    for phase in phases:
        if progress < phase.end:
            return phase
    return phases[-1]
