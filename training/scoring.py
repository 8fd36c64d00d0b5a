"""Sequences, plan and statistics of score.py, and the rows that it writes."""

import dataclasses
import fractions
import math

import numpy as np

from data import BOS, HELD_OUT, Documents, spread_contexts
from ovq.config import MIXER_NAMES, as_heads, share_of
from ovq.dictionary import LONGEST_SEQUENCE, n_centroids_at, n_centroids_blind
from tasks import Sequences, make_task

COLUMNS = ("model", "mixer", "ablation", "backend", "task", "length", "tokens", "centroids",
           "max_centroids", "live_centroids", "state_bytes", "full_kv_cache_bytes", "sequences",
           "scored", "seen", "position", "accuracy", "bits_per_byte", "error", "seconds",
           "tokens_per_second", "checked", "agreement", "logprob_difference")
# Columns for every single sequence: the number of its scored tokens in the group, and the sum of
# their values.
EACH_COLUMNS = ("length", "centroids", "seen", "position", "sequence", "scored", "sum")
LEAST_SEQUENCES = 4
_FIRST_POSITIONS = 128


def mixer_of(layer_types):
    """Returns the mixer after which a model is named: the one that reads its whole context."""
    return next((name for name, kind in MIXER_NAMES.items() if kind in layer_types), "sliding")


@dataclasses.dataclass(frozen=True)
class RowLaw:
    """Number of rows in a dictionary: eq. 17 or, by closest pairs and KeyDiff, as many as allowed.

    shares: of max_centroids, for every layer that has one, or for its heads; the number is their
    mean. blind_growth: growth of the ablation linear_growth_blind."""
    fills: bool = False
    shares: tuple = (1.0,)
    blind_growth: bool = False

    def live(self, n_tokens, max_centroids):
        """Returns the rows at the end of a sequence."""
        def rows(share):
            size = share_of(max_centroids, share)
            if self.blind_growth:
                return n_centroids_blind(n_tokens, size)
            return min(n_tokens, size) if self.fills else n_centroids_at(n_tokens, size)
        layers = [fractions.Fraction(sum(map(rows, heads)), len(heads))
                  for heads in map(as_heads, self.shares)]
        return math.floor(sum(layers) / len(layers))

    def max_centroids(self, spec, n_tokens):
        """Parses "512" or "0.3x": the latter is the largest cap that leaves at most 0.3 live rows
        for each token."""
        if not spec.endswith("x"):
            return int(spec)
        allowed = math.floor(fractions.Fraction(spec[:-1]) * n_tokens)
        # large enough to leave n_tokens - 1, or all
        enough = max(n_tokens ** 2, LONGEST_SEQUENCE if self.blind_growth else 0)
        few, many = 2, int(enough / min(map(min, map(as_heads, self.shares)))) + 1
        if self.live(n_tokens, many) <= allowed:
            raise ValueError(f"--centroids: {spec} of {n_tokens} tokens is no limit")
        while many - few > 1:
            middle = (few + many) // 2
            few, many = ((middle, many) if self.live(n_tokens, middle) <= allowed
                         else (few, middle))
        return few


@dataclasses.dataclass(frozen=True)
class Job:
    """A planned row: n_sequences of n_tokens each, made for `length`, at max_centroids."""
    length: int
    n_tokens: int
    n_sequences: int
    centroids: str | None
    max_centroids: int | None
    law: RowLaw = RowLaw()  # number of rows for max_centroids

    def __str__(self):
        at = "" if self.max_centroids is None else f", {self.max_centroids} centroids"
        return f"length {self.length}{at}"


class TaskExam:
    """Sequences of a task of tasks.py: the accuracy of its scored tokens, also by examples seen.

    least_scored: default for the least average number of scored tokens in every group."""

    metric, group, least_scored = "accuracy", "seen", 384

    def __init__(self, fields, seed):
        self._task, self._seed = make_task(fields), seed
        self.vocab_size = self._task.vocab_size

    def sequences(self, length, count):
        """Returns the same sequences for every model: they depend only on the task, the arguments
        and the seed."""
        # A spawned stream never equals that of a plain (seed, batch), which training uses.
        stream = np.random.SeedSequence(self._seed, spawn_key=(length,))
        return self._task.sequences(length, count, np.random.default_rng(stream))

    def weights(self, made):
        """Returns what each token counts for, [n_sequences, n_tokens]: a number of `scored`."""
        return made.scored

    def values(self, made, predictions):
        """Returns whether each token but the first is the most probable, [n_sequences, n_tokens -
        1]."""
        return np.stack([one.top_ids for one in predictions]) == made.tokens[:, 1:]


class DocumentExam:
    """Held-out documents of the byte corpus: bits per byte, also by position in the context.

    name: the corpus of the training; python_files has fewer held-out modules."""

    metric, group, least_scored = "bits_per_byte", "position", 1 << 15
    names, vocab_size = ("python_files", "python_documents"), Documents.vocab_size

    def __init__(self, name, root):
        held_out = Documents(root).held_out
        names = HELD_OUT if name == "python_files" else held_out
        self._streams = [held_out[name] for name in names]

    def sequences(self, length, count):
        """Returns contexts of bos and length - 1 tokens, spread over the documents. A byte's group
        is the smallest power of two, from 128 on, that its position does not exceed (bos: position
        0)."""
        inputs, targets = spread_contexts(self._streams, length - 1, count)
        tokens = np.concatenate((inputs, targets[:, -1:]), axis=1)
        scored = tokens < BOS  # document marks are no bytes
        return Sequences(tokens, scored, _position_groups(length) * scored)

    def weights(self, made):
        """Returns the bytes of each token, [n_sequences, n_tokens]."""
        return made.scored

    def values(self, made, predictions):
        """Returns the bits of each token but the first, [n_sequences, n_tokens - 1]."""
        return -np.stack([one.logprobs for one in predictions]).astype(np.float64) / math.log(2)


class TextExam(DocumentExam):
    """The beginnings of texts, by a model with a tokenizer of its own: bits per byte, also by
    position in tokens.

    texts: [int64 [n_tokens]], each with the model's first token, if it has one, and the whole text.
    token_bytes int64 [vocab_size]: the bytes that a token stands for; 0: a special token."""

    def __init__(self, texts, token_bytes):
        self._texts, self._token_bytes = texts, token_bytes
        self.vocab_size = 1 + int(max(text.max(initial=0) for text in texts))

    def sequences(self, length, count):
        """Returns the first `length` tokens of the first `count` texts."""
        if count > len(self._texts):
            raise ValueError(f"--text: {len(self._texts)} texts for {count} sequences")
        for text in self._texts[:count]:
            if len(text) < length:
                raise ValueError(f"--text: a text has {len(text)} tokens, and {length} are to be scored")
        tokens = np.stack([text[:length] for text in self._texts[:count]])
        scored = self._token_bytes[tokens] > 0
        return Sequences(tokens, scored, _position_groups(length) * scored)

    def weights(self, made):
        return self._token_bytes[made.tokens]


def _position_groups(length):
    return 1 << np.ceil(np.log2(np.maximum(np.arange(length), _FIRST_POSITIONS))).astype(int)


def make_plan(exam, lengths, specs, n_sequences, law=RowLaw()):
    """Returns jobs by length, for each spec of the centroids ([None]: models whose size a call
    cannot set)."""
    plan = []
    for length in sorted(lengths):
        one = exam.sequences(length, 1)
        n_tokens = one.tokens.shape[1]
        if not one.scored[:, 1:].any():
            raise ValueError(f"--lengths: nothing is scored in sequences of {length} tokens")
        n_groups = len(np.unique(one.seen[one.scored]))
        enough = max(LEAST_SEQUENCES, -(-exam.least_scored * n_groups // int(one.scored.sum())))
        plan += [Job(length, n_tokens, n_sequences or enough, spec,
                     law.max_centroids(spec, n_tokens) if spec else None, law)
                 for spec in specs]
    return plan


def mean_and_error(sums, counts):
    """Returns sum(sums) / sum(counts) over sequences and its standard error (None for one
    sequence).

    sums, counts: [n_sequences]. With equal counts the error is that of the mean of the sequences'
    means."""
    n = len(counts)
    mean = sums.sum() / counts.sum()
    if n < 2:
        return mean, None
    deviation = np.square(sums - mean * counts).sum()
    return mean, math.sqrt(deviation * n / (n - 1)) / counts.sum()


def mean_text(values, digits, unit=""):
    """Returns the mean of one value for each sequence, with its standard error if there is one:
    "91.8 +- 0.7%"."""
    mean, error = mean_and_error(np.asarray(values), np.ones(len(values)))
    return f"{mean:.{digits}f}{'' if error is None else f' +- {error:.{digits}f}'}{unit}"


def grouped_sums(values, weights, groups):
    """Returns [(group or None, counts, sums)] from values, weights, groups [n_sequences, n]; both
    [n_sequences]: of the weights, and of the values of tokens with one.

    The first entry is for all of these tokens; one for each group follows, if any is not 0."""
    parts = [(None, weights)]
    if groups.any():
        parts += [(int(group), weights * (groups == group)) for group in np.unique(groups[weights > 0])]
    return [(group, marks.sum(axis=1), np.where(marks > 0, values, 0).sum(axis=1))
            for group, marks in parts]


def grouped_means(values, weights, groups):
    """Returns [(group or None, count, mean, error)], in the order of grouped_sums."""
    return [(group, int(counts.sum()), *mean_and_error(sums[counts > 0], counts[counts > 0]))
            for group, counts, sums in grouped_sums(values, weights, groups)]


def score_job(exam, job, made, predictions, seconds):
    """Returns the job's rows as dictionaries, and those of its single sequences (EACH_COLUMNS)."""
    row = {"length": job.length, "tokens": job.n_tokens, "centroids": job.centroids,
           "max_centroids": job.max_centroids, "sequences": job.n_sequences}
    if job.max_centroids:
        row["live_centroids"] = job.law.live(job.n_tokens, job.max_centroids)
    scored = exam.values(made, predictions), exam.weights(made)[:, 1:], made.seen[:, 1:]
    rows = [{**row, exam.group: group, "scored": count, exam.metric: f"{mean:.6f}",
             "error": None if error is None else f"{error:.6f}"}
            for group, count, mean, error in grouped_means(*scored)]
    rows[0].update(seconds=f"{seconds:.3f}",
                   tokens_per_second=f"{job.n_tokens * job.n_sequences / seconds:.1f}")
    each = [{"length": job.length, "centroids": job.centroids, exam.group: group, "sequence": i,
             "scored": int(count), "sum": f"{total:.6f}"}
            for group, counts, sums in grouped_sums(*scored)
            for i, (count, total) in enumerate(zip(counts, sums)) if count]
    return rows, each


def compare(reference, job, made, predictions):
    """(scored tokens, how many of them agree, largest log-probability difference [n_sequences])."""
    n_checked, n_equal, largest = 0, 0, []
    for tokens, scored, served in zip(made.tokens, made.scored, predictions):
        own, marks = reference.predict(tokens, job.max_centroids), scored[1:]
        n_checked += int(marks.sum())
        n_equal += int((own.top_ids == served.top_ids)[marks].sum())
        largest.append(float(np.abs(own.top_logprobs - served.top_logprobs)[marks].max()))
    return n_checked, n_equal, largest
