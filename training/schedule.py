"""What the trainer does at which fraction of the run: learning rate and context length."""

import math

MIN_LR_SHARE = 0.05  # of the peak, at the end of the cosine


def learning_rate(peak, progress, step, warmup_steps):
    """Linear warm-up over steps, then a cosine over progress (0 at the start, 1 at the end)."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return peak * min(1.0, (step + 1) / warmup_steps) * (
        MIN_LR_SHARE + (1 - MIN_LR_SHARE) * cosine)


def parse_phases(text):
    """"512:0.6,2048:0.4" -> [(512, 0.6), (2048, 1.0)]: context lengths and where each ends."""
    phases, end = [], 0.0
    for entry in text.split(","):
        try:
            length, share = entry.split(":")
            length, share = int(length), float(share)
        except ValueError:
            raise ValueError(f"--phases: {entry!r} is not LENGTH:SHARE") from None
        if length < 1 or share <= 0:
            raise ValueError(f"--phases: {entry!r} needs a positive length and share")
        end += share
        phases.append((length, end))
    if abs(end - 1) > 1e-6:
        raise ValueError(f"--phases: shares add up to {end:g}, not to 1")
    return phases


def context_length(phases, progress):
    for length, end in phases:
        if progress < end:
            return length
    return phases[-1][0]
