"""Bounded memories other than OVQ's dictionary, applied to a model trained without them: baselines.

Each holds rows of a key, a value and a count, at most max_rows for each head. As with OVQ, a chunk
attends to the rows and to its own past in one softmax, with ln(count) added to a row's score; then
its tokens become rows of count 1, and rows are removed while they are too many. Up to max_rows
tokens it is full attention. Shapes as in dictionary.py; what is removed is a constant to gradients.

    window        removes the oldest rows
    sinks         like window, but keeps the first four (StreamingLLM, Xiao et al. 2023)
    keydiff       removes the rows whose keys are most like the mean key (KeyDiff, Park et al. 2025); of
                  equally like ones, the newer: the server's rule, kernels/mixers/key_diff/README.md, which spares the
                  first and the newest tokens that a PairRule names
    received      removes the rows that the chunk's queries attend to least, never one of the chunk's own
                  (SnapKV, Li et al. 2024, after each chunk in place of once a prompt, and without its pooling)
    closest_pair  merges the two closest rows to their mean, repeatedly: closest_pair.py
"""

import torch

from ovq.closest_pair import closest_pair_attention
from ovq.config import PairRule
from ovq.dictionary import read_chunk
from ovq.mixers import wide


_SINKS = 4


def _kept(rows, order, max_rows):
    """Returns the first max_rows of each head's rows by `order` [batch, heads, n_rows], oldest first."""
    index = order[..., :max_rows].sort(dim=-1).values
    return tuple(x.gather(2, index if x.dim() == 3 else index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))
                 for x in rows)


def _drop_oldest(rows, max_rows, q, rule):
    return tuple(x[:, :, -max_rows:] for x in rows)


def _drop_oldest_but_sinks(rows, max_rows, q, rule):
    n_newest = max(0, max_rows - _SINKS)
    return tuple(torch.cat((x[:, :, :max_rows - n_newest], x[:, :, x.shape[2] - n_newest:]), 2) for x in rows)


def _drop_most_usual(rows, max_rows, q, rule):
    """Keys are unit norm: cosines with the mean key are ordered like products with it."""
    keys = rows[0]
    similarity = torch.matmul(keys, keys.mean(dim=2).unsqueeze(-1)).squeeze(-1).detach()
    similarity[..., :rule.pinned(max_rows)] = float("-inf")
    similarity[..., similarity.shape[-1] - rule.recent(max_rows):] = float("-inf")
    return _kept(rows, similarity.sort(dim=-1, stable=True).indices, max_rows)


def _drop_least_received(rows, max_rows, q, rule):
    """A row has received the sum of its probabilities over the chunk's queries and the group's heads."""
    n_rows, n_own = rows[0].shape[2], q.shape[-2]
    scores = torch.matmul(wide(q), rows[0].unsqueeze(2).transpose(-1, -2))
    later = torch.ones(n_own, n_rows, dtype=torch.bool, device=q.device).triu(n_rows - n_own + 1)
    received = scores.masked_fill(later, float("-inf")).softmax(-1).sum((2, 3))
    # more than any sum, the newest token's most
    received[..., n_rows - n_own:] = q.shape[2] * n_own + 1 + torch.arange(n_own, device=q.device)
    return _kept(rows, received.sort(dim=-1, stable=True, descending=True).indices, max_rows)


# Each takes rows (keys, values, counts) that are too many, the last chunk's queries and a PairRule, and returns max_rows of them.
_SHRINK = {"window": _drop_oldest, "sinks": _drop_oldest_but_sinks, "keydiff": _drop_most_usual,
           "received": _drop_least_received}
MEMORIES = (*_SHRINK, "closest_pair")


def bounded_attention(q, k, v, chunk_len, max_rows, memory, variance_scale=None, rule=PairRule()):
    """Causal attention in which one of MEMORIES replaces the past before the own chunk.

    rule: of closest_pair; of keydiff, which tokens it spares. variance_scale: of closest_pair, as in dictionary.py's
    row_bias; the others merge no rows."""
    if memory == "closest_pair":
        return closest_pair_attention(q, k, v, chunk_len, max_rows, rule=rule, variance_scale=variance_scale)
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
            keys, values, counts = _SHRINK[memory]((keys, values, counts), max_rows, q[..., chunk, :], rule)
    return torch.cat(outs, dim=-2)
