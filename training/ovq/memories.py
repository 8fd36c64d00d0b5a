"""Bounded memories beside OVQ's dictionary, as read-outs of a model trained without them: baselines.

Each holds rows of a key, a value and a count, at most max_rows of them a head. As with OVQ, a chunk
attends to the rows and to its own past in one softmax, ln(count) being added to a row's score; then
its tokens become rows of count 1, and where these are too many the memory shrinks. Up to max_rows
tokens it is full attention. Shapes as in dictionary.py; for evaluation, without gradients.

    window        the oldest rows go
    keydiff       the rows whose keys are most like the mean key go (KeyDiff, Park et al. 2025)
    closest_pair  the two closest rows become their mean, again and again
"""

import math

import numpy as np
import torch

from ovq.dictionary import read_chunk
from ovq.mixers import wide

# What closest_pair adds of |value - value|^2, in units of the mean |value|^2, to |key - key|^2.
_VALUE_WEIGHT = 0.5


def _drop_oldest(keys, values, counts, max_rows):
    return tuple(x[:, :, -max_rows:] for x in (keys, values, counts))


def _drop_most_usual(keys, values, counts, max_rows):
    """Keys are unit norm: their cosines with the mean key go as their products with it."""
    similarity = torch.matmul(keys, keys.mean(dim=2).unsqueeze(-1)).squeeze(-1)
    kept = similarity.sort(dim=-1, stable=True).indices[..., :max_rows].sort(dim=-1).values
    index = kept.unsqueeze(-1)
    return (keys.gather(2, index.expand(*kept.shape, keys.shape[-1])),
            values.gather(2, index.expand(*kept.shape, values.shape[-1])), counts.gather(2, kept))


def _merge_head(points, counts, n_merges):
    """Merges the closest pair of points [n, dim] n_merges times, the later row into the earlier one.

    Changes points and counts [n] in place; returns which rows are left. Ties: the earliest rows.
    """
    squares = np.square(points).sum(-1)
    distances = squares[:, None] + squares[None] - 2 * points @ points.T
    distances[np.tril_indices(len(points))] = np.inf  # row i: to rows of higher index only
    nearest, alive = distances.argmin(1), np.ones(len(points), bool)
    closest = distances.min(1)
    for _ in range(n_merges):
        i = int(closest.argmin())
        j = int(nearest[i])
        share = counts[j] / (counts[i] + counts[j])
        points[i] += share * (points[j] - points[i])
        counts[i] += counts[j]
        alive[j] = False
        distances[j], distances[:, j] = np.inf, np.inf
        fresh = np.where(alive, np.square(points - points[i]).sum(-1), np.inf)
        distances[i, i + 1:], distances[:i, i] = fresh[i + 1:], fresh[:i]
        # whose nearest row is gone or has moved, and whom the moved row has come closest to
        changed = np.flatnonzero((nearest == i) | (nearest == j) | (distances[:, i] < closest))
        changed = np.union1d(changed, (i, j))
        nearest[changed] = distances[changed].argmin(1)
        closest[changed] = distances[changed, nearest[changed]]
    return alive


def _merge_closest(keys, values, counts, max_rows):
    n_merges, head_dim = keys.shape[2] - max_rows, keys.shape[-1]
    shrunk = []
    for key, value, count in zip(*(x.flatten(0, 1) for x in (keys, values, counts))):
        scale = math.sqrt(_VALUE_WEIGHT / float(value.square().sum(-1).mean()))
        points = torch.cat((key, value * scale), -1).numpy()
        count = count.numpy().copy()
        alive = _merge_head(points, count, n_merges)
        rows = torch.from_numpy(points[alive])
        shrunk.append((rows[:, :head_dim], rows[:, head_dim:] / scale,
                       torch.from_numpy(count[alive])))
    return tuple(torch.stack(x).unflatten(0, keys.shape[:2]) for x in zip(*shrunk))


MEMORIES = {"window": _drop_oldest, "keydiff": _drop_most_usual, "closest_pair": _merge_closest}


@torch.no_grad()
def bounded_attention(q, k, v, chunk_len, max_rows, memory):
    """Causal attention whose past beyond the own chunk is a memory of MEMORIES."""
    keys, values = (wide(x[:, :, :0]) for x in (k, v))
    counts = torch.zeros(k.shape[0], k.shape[1], 0, dtype=torch.int64, device=k.device)
    outs = []
    for begin in range(0, k.shape[2], chunk_len):
        chunk = slice(begin, begin + chunk_len)
        own_k, own_v = k[:, :, chunk], v[:, :, chunk]
        outs.append(read_chunk(q[..., chunk, :], own_k, own_v, torch.cat((keys, values), -1),
                               counts))
        keys, values = torch.cat((keys, wide(own_k)), 2), torch.cat((values, wide(own_v)), 2)
        counts = torch.cat((counts, counts.new_ones(own_k.shape[:3])), 2)
        if keys.shape[2] > max_rows:
            keys, values, counts = MEMORIES[memory](keys, values, counts, max_rows)
    return torch.cat(outs, dim=-2)
