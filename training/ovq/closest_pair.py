"""Closest-pair dictionaries: every token becomes a row, and the closest rows merge as needed.

The rule, exactly (kernels/mixers/closest_pair/README.md): L is the chunk length, N the most rows;
PairRule in config.py has the options of a model. A chunk attends to the rows and to its own past in
one softmax, as in dictionary.py. Meanwhile its tokens join the rows as candidates, one after
another, and pairs of candidates merge: after o of its L tokens, as many pairs have merged as leave N
rows at its end, except two for each token still to come. Merges take effect only at the chunk's end.
A pair's distance is

    |key - key|^2 + w K / V |value - value|^2 + lambda (s + s)

lambda is merge_variance. s is the variance of a row's keys, 1 - |row's key|^2, as they have unit norm; 0 if that is at
most 1 / 16. K is |key|^2, 1 if keys have unit norm. V is the mean |value|^2 of the first floor(N / 2) + 1 tokens.
If V differs by more than a factor of two from the mean of the candidates when a chunk's merges
begin, it becomes that mean. If keys have no norm, V / K is measured like V. The closest pair is
replaced by its weighted mean; of equally close pairs, that of the lowest rows merges. The choice of
merges is computed in float64, in numpy or (if there is a compiler and the model is not float64) by
pairs.cc, and is a constant to gradients; rows are means of their tokens, which have gradients.
"""

import numpy as np
import torch

from ovq import fused
from ovq.config import PairRule
from ovq.dictionary import read_chunk
from ovq.mixers import wide

MERGES_PER_TOKEN = 2
SIZE_CHANGE = 2.0  # V is recomputed when it is off by more than this factor
LEAST_VARIANCE = 1 / 16  # of a row's keys, that counts; what rounding leaves of equal keys does not


def n_rows_at(position, chunk_len, max_rows):
    """Returns the number of rows before the token at `position`."""
    return min(position // chunk_len * chunk_len, max_rows)


class Candidates:
    """Candidates for merges within a chunk: one head's rows, and its tokens as they join."""

    def __init__(self, keys, values, counts, scale, merge_variance=0.0):
        """scale: factor of values, which makes plain squared distances the rule's distances but for
        variances."""
        self.keys, self.values, self.counts = keys, values, counts
        self.points = np.concatenate((keys, values * scale), -1)
        n = len(keys)
        self.merge_variance = merge_variance
        self.added = self._added(keys)  # by the variance of a row
        self.alive = np.zeros(n, bool)
        # for row i: its distances to the rows before it
        self.distances = np.full((n, n), np.inf)
        self.closest, self.nearest = np.full(n, np.inf), np.zeros(n, int)
        self.part_of = np.arange(n)  # for a merged row: the row that holds it now

    def _added(self, keys):
        variance = 1 - np.square(keys).sum(-1)
        return self.merge_variance * np.where(variance > LEAST_VARIANCE, variance, 0)

    def join(self, i):
        self.alive[i] = True
        fresh = np.square(self.points - self.points[i]).sum(-1) + self.added + self.added[i]
        fresh = np.where(self.alive, fresh, np.inf)
        self.distances[i, :i], self.distances[i + 1:, i] = fresh[:i], fresh[i + 1:]
        closer = fresh < self.closest
        closer[:i + 1] = False
        stale = (self.nearest == i) & self.alive | closer
        stale[i] = True
        self._renew(np.flatnonzero(stale))

    def _renew(self, rows):
        self.nearest[rows] = self.distances[rows].argmin(1)
        self.closest[rows] = self.distances[rows, self.nearest[rows]]

    def _leave(self, j):
        self.alive[j] = False
        self.distances[j], self.distances[:, j] = np.inf, np.inf
        self.closest[j] = np.inf

    def merge_closest(self):
        """Merges the closest pair: their mean replaces the lower row."""
        ties = np.flatnonzero(self.closest == self.closest.min())
        j = min(ties, key=lambda row: (self.nearest[row], row))
        i = self.nearest[j]
        self.part_of[j] = i
        share = self.counts[j] / (self.counts[i] + self.counts[j])
        for rows in (self.keys, self.values, self.points):
            rows[i] += share * (rows[j] - rows[i])
        self.added[i] = self._added(self.keys[i])
        self.counts[i] += self.counts[j]
        self._leave(j)
        self._renew(np.flatnonzero(self.alive & (self.nearest == j)))
        self.join(i)


def merge_pairs(keys, values, counts, weight, merge_variance, first, ends, due):
    """Performs a chunk's merges in place; returns for every row the row it has merged into, itself
    if none.

    weight: factor of values in a distance, merge_variance: of the rows' variances. Rows from `first`
    to ends[o] have joined after token o of the chunk, and due[o] pairs have merged."""
    candidates, done, joined = Candidates(keys, values, counts, np.sqrt(weight), merge_variance), 0, first
    for end, n_merges in zip(ends, due):
        for row in range(joined, end):
            candidates.join(row)
        joined = max(joined, end)
        for _ in range(done, n_merges):
            candidates.merge_closest()
        done = n_merges
    return candidates.part_of


class ClosestPairRows:
    """One head's rows: keys [n, d], values [n, dv], counts [n], in float64.

    key_size: K, or None to measure it. merge: merge_pairs or an equivalent. The rows are ordered by
    their oldest tokens."""

    def __init__(self, head_dim, value_head_dim, max_rows, key_size=1.0, rule=PairRule(),
                 merge=merge_pairs):
        self.keys, self.values = np.zeros((0, head_dim)), np.zeros((0, value_head_dim))
        self.counts, self.max_rows = np.zeros(0, np.int64), max_rows
        self.merge = merge
        self.key_size, self.rule = key_size, rule
        self.n_tokens = 0
        self.size = None  # V / K, known once more than half of max_rows tokens have passed

    def _size(self, rows):
        """Computes V / K from these rows."""
        values = float(np.square(self.values[rows]).sum(-1).mean())
        if self.key_size is not None:
            return values / self.key_size
        keys = float(np.square(self.keys[rows]).sum(-1).mean())
        return values / keys if keys > 0 else 0.0

    def append(self, keys, values, merges_per_token=MERGES_PER_TOKEN):
        """Appends a whole chunk: keys [L, d], values [L, dv].

        Returns the new row of each row before it and then of each of its tokens: [n + L]."""
        n, chunk_len = len(self.keys), len(keys)
        n_merges, n_sized = max(0, n + chunk_len - self.max_rows), self.max_rows // 2 + 1
        self.keys, self.values = np.concatenate((self.keys, keys)), np.concatenate(
            (self.values, values))
        self.counts = np.concatenate((self.counts, np.ones(chunk_len, np.int64)))
        if self.size is None and len(self.keys) >= n_sized:
            self.size = self._size(slice(n_sized))
        self.n_tokens += chunk_len
        if n_merges == 0:
            return np.arange(n + chunk_len)
        # ends has the candidates after o + 1 tokens of the chunk; the newest tokens, which are no
        # candidates, are the last rows.
        pinned, recent = self.rule.pinned(self.max_rows), self.rule.recent(self.max_rows)
        tokens = np.arange(1, chunk_len + 1)
        ends = n + tokens - np.maximum(recent, self.max_rows - self.n_tokens + chunk_len - tokens)
        due = np.maximum(0, n_merges - merges_per_token * (chunk_len - tokens))
        size = self._size(slice(pinned, ends[np.flatnonzero(due)[0]]))
        if not self.size / SIZE_CHANGE <= size <= self.size * SIZE_CHANGE:
            self.size = size
        weight = self.rule.value_weight / self.size if self.size > 0 else 0.0
        part_of = self.merge(self.keys, self.values, self.counts, weight, self.rule.merge_variance, pinned, ends, due)
        while (part_of != part_of[part_of]).any():
            part_of = part_of[part_of]
        left = part_of == np.arange(n + chunk_len)
        self.keys, self.values, self.counts = self.keys[left], self.values[left], self.counts[left]
        return (left.cumsum() - 1)[part_of]


def closest_pair_attention(q, k, v, chunk_len, max_rows, key_size=1.0, rule=PairRule(),
                           variance_scale=None):
    """Closest-pair attention. Shapes as in mixers.py; key_size as in ClosestPairRows,
    variance_scale as in dictionary.py's row_bias."""
    batch, n_heads, n_tokens, head_dim = k.shape
    plain = k.dtype == torch.float64 or k.device.type != "cpu" or fused.compiled() is None
    merge = merge_pairs if plain else fused.merge_pairs
    heads = [ClosestPairRows(head_dim, v.shape[-1], max_rows, key_size, rule, merge)
             for _ in range(batch * n_heads)]
    sums = wide(k).new_zeros(batch, n_heads, 0, head_dim + v.shape[-1])
    counts, outs, end = torch.zeros(batch, n_heads, 0, dtype=torch.int64, device=k.device), [], 0

    def stacked(arrays):
        return torch.from_numpy(np.stack(arrays)).unflatten(0, (batch, n_heads)).to(k.device)

    # split, not slices: the gradient of a slice is a tensor of the whole's size
    for own_q, own_k, own_v in zip(*(x.split(chunk_len, dim=-2) for x in (q, k, v))):
        outs.append(read_chunk(own_q, own_k, own_v, sums / counts.unsqueeze(-1), counts,
                               variance_scale=variance_scale))
        end += own_k.shape[2]
        if end == n_tokens:
            break
        row_of = stacked([head.append(*(x.detach().cpu().double().numpy() for x in (key, value)))
                          for head, key, value in zip(heads, own_k.flatten(0, 1), own_v.flatten(0, 1))])
        counts = stacked([head.counts for head in heads])
        parts = torch.cat((sums, torch.cat((wide(own_k), wide(own_v)), -1)), 2)
        # rows of all heads are stacked: adding whole rows is faster than adding single numbers
        firsts = torch.arange(batch * n_heads, device=k.device) * counts.shape[-1]
        index = row_of.flatten(0, 1) + firsts.unsqueeze(-1)
        sums = parts.new_zeros(counts.numel(), parts.shape[-1])
        sums = sums.index_add(0, index.flatten(), parts.flatten(0, 2)).view(*counts.shape, -1)
    return torch.cat(outs, dim=-2)
