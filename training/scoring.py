"""What score.py scores and how its rows come about: sequences, plan, statistics."""

import dataclasses
import fractions
import math

import numpy as np

COLUMNS = ("model", "mixer", "ablation", "backend", "task", "length", "tokens", "centroids",
           "max_centroids", "live_centroids", "state_bytes", "full_kv_cache_bytes", "sequences",
           "scored", "seen", "accuracy", "error", "seconds", "tokens_per_second", "checked",
           "agreement", "logprob_difference")
_MIXERS = {"ovq_attention": "ovq", "full_attention": "full", "vq_attention": "vq"}
LEAST_SCORED, LEAST_SEQUENCES = 384, 4


def mixer_of(layer_types):
    """What a model is called after: the mixer that reads its whole context."""
    return next((name for kind, name in _MIXERS.items() if kind in layer_types), "sliding")


def live_centroids(n_tokens, max_centroids):
    """Eq. 17 at the end of a sequence."""
    return n_tokens * max_centroids // (n_tokens + max_centroids)


def centroids_for(spec, n_tokens):
    """max_centroids of "512" or "0.3x": the most that leaves at most 0.3 live ones a token."""
    if not spec.endswith("x"):
        return int(spec)
    # The first number of live centroids too many. It needs n_tokens * max_centroids >=
    # too_many * (n_tokens + max_centroids), and the largest max_centroids that fails this is:
    too_many = math.floor(fractions.Fraction(spec[:-1]) * n_tokens) + 1
    if too_many == n_tokens:  # never reached
        raise ValueError(f"--centroids: {spec} of {n_tokens} tokens is no limit")
    return -(-too_many * n_tokens // (n_tokens - too_many)) - 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A row to be: n_sequences of n_tokens each, made for `length`, at max_centroids."""
    length: int
    n_tokens: int
    n_sequences: int
    centroids: str
    max_centroids: int | None

    def __str__(self):
        at = "" if self.max_centroids is None else f", {self.max_centroids} centroids"
        return f"length {self.length}{at}"


def sequences(task, length, n_sequences, seed):
    """The same for every model: they depend on the task, the length, their number and the seed."""
    # A spawned stream is never that of a plain (seed, batch), which training draws from.
    stream = np.random.SeedSequence(seed, spawn_key=(length,))
    return task.sequences(length, n_sequences, np.random.default_rng(stream))


def make_plan(task, lengths, specs, n_sequences, seed):
    """Jobs by length, for each spec of the centroids ([None]: models without dictionaries)."""
    plan = []
    for length in sorted(lengths):
        one = sequences(task, length, 1, seed)
        n_tokens = one.tokens.shape[1]
        enough = max(LEAST_SEQUENCES, -(-LEAST_SCORED // int(one.scored.sum())))
        plan += [Job(length, n_tokens, n_sequences or enough, spec,
                     centroids_for(spec, n_tokens) if spec else None) for spec in specs]
    return plan


def share_and_error(right, counts):
    """sum(right) / sum(counts) over sequences and its standard error (None for one sequence).

    right, counts: [n_sequences]. With equal counts the error is that of the mean of the shares.
    """
    n = len(counts)
    share = right.sum() / counts.sum()
    if n < 2:
        return share, None
    deviation = np.square(right - share * counts).sum()
    return share, math.sqrt(deviation * n / (n - 1)) / counts.sum()


def accuracies(right, scored, seen):
    """[(seen or None, scored tokens, accuracy, error)] of right, scored, seen [n_sequences, n].

    The first is of all scored tokens; others follow where sequences tell how many examples were
    seen.
    """
    groups = [(None, scored)]
    if seen.any():
        groups += [(int(n), scored & (seen == n)) for n in np.unique(seen[scored])]
    rows = []
    for group, marks in groups:
        counts = marks.sum(axis=1)
        share, error = share_and_error((right & marks).sum(axis=1)[counts > 0],
                                       counts[counts > 0])
        rows.append((group, int(counts.sum()), share, error))
    return rows


def score_job(job, made, predictions, seconds, common):
    """The job's rows as dictionaries; `common` has the columns that all rows of the CSV share."""
    right = np.stack([one.top_ids for one in predictions]) == made.tokens[:, 1:]
    row = {**common, "length": job.length, "tokens": job.n_tokens, "centroids": job.centroids,
           "max_centroids": job.max_centroids, "sequences": job.n_sequences}
    if job.max_centroids:
        row["live_centroids"] = live_centroids(job.n_tokens, job.max_centroids)
    rows = [{**row, "seen": seen, "scored": scored, "accuracy": f"{share:.6f}",
             "error": None if error is None else f"{error:.6f}"}
            for seen, scored, share, error in accuracies(right, made.scored[:, 1:],
                                                         made.seen[:, 1:])]
    rows[0].update(seconds=f"{seconds:.3f}",
                   tokens_per_second=f"{job.n_tokens * job.n_sequences / seconds:.1f}")
    return rows


def compare(reference, job, made, predictions):
    """(scored tokens, how many of them agree, largest difference of log-probabilities)."""
    n_checked, n_equal, largest = 0, 0, 0.0
    for tokens, scored, served in zip(made.tokens, made.scored, predictions):
        own, marks = reference.predict(tokens, job.max_centroids), scored[1:]
        n_checked += int(marks.sum())
        n_equal += int((own.top_ids == served.top_ids)[marks].sum())
        largest = max(largest, float(np.abs(own.top_logprobs - served.top_logprobs)[marks].max()))
    return n_checked, n_equal, largest
