"""Bounded memories other than OVQ's dictionary, applied to a model trained without them: baselines.

Each holds rows of a key, a value and a count, at most max_rows for each head. As with OVQ, a chunk
attends to the rows and to its own past in one softmax, with ln(count) added to a row's score; then
its tokens become rows of count 1, and rows are removed while they are too many. Up to max_rows
tokens it is full attention. Shapes as in dictionary.py; for evaluation, without gradients.

    window        removes the oldest rows
    sinks         like window, but keeps the first four (StreamingLLM, Xiao et al. 2023)
    keydiff       removes the rows whose keys are most like the mean key (KeyDiff, Park et al. 2025)
    closest_pair  merges the two closest rows to their mean, repeatedly: closest_pair.py
"""

import torch

from ovq.closest_pair import closest_pair_attention
from ovq.dictionary import read_chunk
from ovq.mixers import wide

def _drop_oldest(keys, values, counts, max_rows):
    return tuple(x[:, :, -max_rows:] for x in (keys, values, counts))


_SINKS = 4


def _drop_oldest_but_sinks(keys, values, counts, max_rows):
    n_newest = max(0, max_rows - _SINKS)
    return tuple(torch.cat((x[:, :, :max_rows - n_newest], x[:, :, x.shape[2] - n_newest:]), 2)
                 for x in (keys, values, counts))


def _drop_most_usual(keys, values, counts, max_rows):
    """Keys are unit norm: cosines with the mean key are ordered like products with it."""
    similarity = torch.matmul(keys, keys.mean(dim=2).unsqueeze(-1)).squeeze(-1)
    kept = similarity.sort(dim=-1, stable=True).indices[..., :max_rows].sort(dim=-1).values
    index = kept.unsqueeze(-1)
    return (keys.gather(2, index.expand(*kept.shape, keys.shape[-1])),
            values.gather(2, index.expand(*kept.shape, values.shape[-1])), counts.gather(2, kept))


_SHRINK = {"window": _drop_oldest, "sinks": _drop_oldest_but_sinks, "keydiff": _drop_most_usual}
MEMORIES = (*_SHRINK, "closest_pair")


@torch.no_grad()
def bounded_attention(q, k, v, chunk_len, max_rows, memory):
    """Causal attention in which one of MEMORIES replaces the past before the own chunk."""
    if memory == "closest_pair":
        return closest_pair_attention(q, k, v, chunk_len, max_rows)
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
            keys, values, counts = _SHRINK[memory](keys, values, counts, max_rows)
    return torch.cat(outs, dim=-2)
