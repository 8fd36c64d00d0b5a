"""OVQ attention: a dictionary of key and value means that is learned while attending.

Shapes as in mixers.py. A row of the dictionary (a slot) is a key mean beside a value mean: rows
[batch, n_kv_heads, n_centroids, head_dim + value_head_dim], counts [batch, n_kv_heads,
n_centroids]. The assignment of keys to rows is computed without gradients; the means are ordinary
weighted sums of keys and values, so gradients flow through every update (no straight-through)."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ovq.config import OvqRules
from ovq.mixers import attend, ranges_up_to, wide

# Ablations of the paper's section 4.4: each replaces one rule of the dictionary by a plainer one.
ABLATIONS = ("none", "random_assignment", "linear_growth", "linear_growth_blind", "constant_rate")
_CONSTANT_RATE = 0.25
# Number of tokens over which linear_growth_blind spreads its centroids: 16 times the longest
# training contexts of the ablated recipe, like the paper's 64k tokens for its 4k.
LONGEST_SEQUENCE = 16384


def n_centroids_at(position, max_centroids):
    """Eq. 17 in integers: returns the live centroids before the token at `position`."""
    return position * max_centroids // (position + max_centroids)


def n_centroids_blind(position, max_centroids):
    """Like n_centroids_at, for linear_growth_blind: all of max_centroids after LONGEST_SEQUENCE
    tokens."""
    return max(1, min(position, max_centroids, position * max_centroids // LONGEST_SEQUENCE))


def _n_centroids(position, n_tokens, max_centroids, rules, ablation):
    if rules.min_state_size:
        return min(position, max_centroids)
    if ablation == "linear_growth_blind":  # grows at one rate for all lengths of sequences
        return n_centroids_blind(position, max_centroids)
    # reaches the same final number; every chunk adds an equal share
    if ablation == "linear_growth":
        return max(1, position * n_centroids_at(n_tokens, max_centroids) // n_tokens)
    return n_centroids_at(position, max_centroids)


def _novelty(keys, similarity, ablation):
    """Returns scores of which the lowest become centroids: the similarity, or unrelated numbers."""
    if ablation != "random_assignment":
        return similarity
    # low digits of a sum of the key's channels: random, but reproducible
    return (wide(keys).sum(-1) * 4096).frac().abs()


def _first_assignment(keys, n_new, ablation):
    """Assigns chunk 0: all keys to centroid 0, except the n_new-1 least like key 0, which start
    their own."""
    similarity = torch.matmul(keys, keys[..., 0, :].unsqueeze(-1)).squeeze(-1)
    similarity = _novelty(keys, similarity, ablation)
    similarity[..., 0] = float("inf")  # key 0 itself is never chosen
    order = similarity.sort(dim=-1, stable=True).indices[..., :n_new - 1]
    fresh = torch.arange(1, n_new, device=keys.device).expand_as(order)
    return torch.zeros(keys.shape[:-1], dtype=torch.int64, device=keys.device).scatter_(
        -1, order, fresh)


@torch.no_grad()
def assign_chunk(keys, centroids, n_new, ablation="none"):
    """Assigns every key of a chunk to a row: [batch, n_kv_heads, chunk_len].

    The n_new keys least similar to their nearest old centroid become new centroids, in ascending
    order of that similarity; the others merge into that centroid. Ties go to the lower index."""
    n_old = centroids.shape[-2]
    if n_old == 0:
        return _first_assignment(keys, n_new, ablation)
    similarity = torch.matmul(keys, centroids.transpose(-1, -2))
    best, nearest = similarity.max(dim=-1)
    order = _novelty(keys, best, ablation).sort(dim=-1, stable=True).indices[..., :n_new]
    fresh = torch.arange(n_old, n_old + n_new, device=keys.device).expand_as(order)
    return nearest.scatter_(-1, order, fresh)


def merge_chunk(rows, counts, keys_values, assignment, n_new, ablation="none", n_kept=0):
    """Eq. 19 over a chunk: row += sum (key - row_old) / count_new over the keys assigned to it.

    n_kept: number of last channels from which nothing is subtracted: row += sum key / count_new."""
    batch, n_heads, _, width = rows.shape
    rows = torch.cat((rows, rows.new_zeros(batch, n_heads, n_new, width)), dim=2)
    old = torch.cat((counts, counts.new_zeros(batch, n_heads, n_new)), dim=2)
    counts = old.scatter_add(2, assignment, torch.ones_like(assignment))
    rates = counts.to(rows.dtype).reciprocal()
    if ablation == "constant_rate":
        # replaces 1/count for existing rows; never moves past the mean of a chunk's keys
        assigned = (counts - old).clamp(min=1).to(rows.dtype)
        rates = torch.where(old > 0, assigned.reciprocal().clamp(max=_CONSTANT_RATE), rates)
    kept = (1 - (counts - old) * rates).unsqueeze(-1)
    if n_kept:
        shape = (-1, -1, -1, width - n_kept)
        kept = torch.cat((kept.expand(shape), torch.ones_like(rows[..., :n_kept])), dim=-1)
    share = keys_values * rates.gather(2, assignment).unsqueeze(-1)
    index = assignment.unsqueeze(-1).expand_as(share)
    return (rows * kept).scatter_add(2, index, share), counts


def row_bias(keys, counts, variance_scale=None):
    """Returns what a row's score gains: ln(count) and, with variance_scale, that times the variance
    of its keys, 1 - |mean key|^2.

    keys [batch, n_kv_heads, n_rows, head_dim]: mean keys; counts [batch, n_kv_heads, n_rows];
    variance_scale [n_kv_heads]: factor * mean |q|^2 / (2 head_dim) (variance_scale in model.py).
    Constant to gradients."""
    bias = counts.to(wide(keys).dtype).log()
    if variance_scale is None:
        return bias
    variance = (1 - wide(keys).detach().square().sum(-1)).clamp(min=0)
    # one key has no variance: its norm is 1 but for rounding
    variance = torch.where(counts > 1, variance, torch.zeros_like(variance))
    return bias + variance * variance_scale.to(bias.dtype).unsqueeze(-1)


def read_chunk(q, k, v, rows, counts, weighs_counts=True, variance_scale=None):
    """One softmax over the rows, each with its row_bias, and the chunk's own keys (eq. 15)."""
    group, n_tokens, head_dim = q.shape[2:]
    old_keys, old_values = rows.to(k.dtype).split((head_dim, v.shape[-1]), dim=-1)
    keys = torch.cat((old_keys, k), dim=2)
    values = torch.cat((old_values, v), dim=2)
    bias = None
    if weighs_counts:  # 0 for the chunk's own keys
        bias = F.pad(row_bias(rows[..., :head_dim], counts, variance_scale), (0, n_tokens))
    ranges = ranges_up_to(rows.shape[2] + 1, n_tokens, q.device).repeat(1, group)
    # queries of a group read the same keys: one product serves all
    return attend(q.flatten(2, 3), keys, values, ranges, bias).unflatten(2, (group, n_tokens))


def _predicted(k, rows, counts, rules, key_scales, variance_scale):
    """Predicts the values of keys [batch, n_kv_heads, n, head_dim] from the rows alone; 0 without
    rows."""
    keys, values = rows.split((k.shape[-1], rows.shape[-1] - k.shape[-1]), dim=-1)
    if rows.shape[2] == 0:
        return values.new_zeros(*k.shape[:-1], values.shape[-1])
    bias = None if rules.counts_for_rates_only else row_bias(keys, counts, variance_scale)
    ends = torch.full((k.shape[2],), rows.shape[2], dtype=torch.int32, device=k.device)
    queries = k * key_scales.to(k.dtype)[:, None, None]
    return attend(queries, keys, values, torch.stack((torch.zeros_like(ends), ends)), bias)


def _normalized(rows, head_dim, rules):
    keys, values = rows.split((head_dim, rows.shape[-1] - head_dim), dim=-1)
    if not rules.delta_rule:
        values = F.normalize(values, dim=-1, eps=1e-12)
    return torch.cat((F.normalize(keys, dim=-1, eps=1e-12), values), dim=-1)


def _step_chunk(q, k, v, rows, counts, n_new, ablation, rules, key_scales, variance_scale):
    """One chunk attends, then updates the dictionary; returns (out, rows, counts)."""
    out = read_chunk(q, k, v, rows, counts, not rules.counts_for_rates_only, variance_scale)
    keys, values, head_dim = wide(k), wide(v), k.shape[-1]
    assignment = assign_chunk(keys, rows[..., :head_dim], n_new, ablation)
    if rules.delta_rule:
        values = values - _predicted(keys, rows, counts, rules, key_scales, variance_scale)
    rows, counts = merge_chunk(rows, counts, torch.cat((keys, values), dim=-1), assignment, n_new,
                               ablation, v.shape[-1] if rules.delta_rule else 0)
    return out, _normalized(rows, head_dim, rules) if rules.normalize_centroids else rows, counts


def ovq_attention(q, k, v, chunk_len, max_centroids, ablation="none", recompute_chunks=False,
                  rules=OvqRules(), key_scales=None, variance_scale=None):
    """Runs OVQ attention chunk by chunk. ablation: one of ABLATIONS.

    recompute_chunks: keep only the dictionaries between the chunks for the backward pass.
    key_scales: [n_kv_heads], factors that make a query of a key, for rules.delta_rule.
    variance_scale: as in row_bias.
    """
    batch, n_heads, n_tokens, head_dim = k.shape
    rows = wide(k).new_zeros(batch, n_heads, 0, head_dim + v.shape[-1])
    counts = torch.zeros(batch, n_heads, 0, dtype=torch.int64, device=k.device)
    outs, end = [], 0
    # split, not slices: the gradient of a slice is a tensor of the whole's size
    for chunk in zip(*(x.split(chunk_len, dim=-2) for x in (q, k, v))):
        end += chunk[1].shape[2]
        if end == n_tokens:  # no later token reads this update, so it is skipped
            outs.append(read_chunk(*chunk, rows, counts, not rules.counts_for_rates_only,
                                   variance_scale))
            break
        n_new = _n_centroids(end, n_tokens, max_centroids, rules, ablation) - rows.shape[2]
        arguments = (*chunk, rows, counts, n_new, ablation, rules, key_scales, variance_scale)
        if recompute_chunks and torch.is_grad_enabled():
            out, rows, counts = checkpoint(_step_chunk, *arguments, use_reentrant=False,
                                           preserve_rng_state=False)
        else:
            out, rows, counts = _step_chunk(*arguments)
        outs.append(out)
    return torch.cat(outs, dim=-2)
