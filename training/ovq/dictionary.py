"""OVQ attention: a dictionary of key and value means that is learned while attending.

Shapes as in mixers.py. The dictionary's rows hold a key mean and a value mean side by side:
rows [batch, n_kv_heads, n_centroids, head_dim + value_head_dim], counts [batch, n_kv_heads,
n_centroids]. Which key goes to which row is decided without gradients; the means are ordinary
weighted sums of keys and values, so gradients flow through every update (no straight-through).
"""

import torch

from ovq.mixers import attend, minus_infinity_where, wide


def n_centroids_at(position, max_centroids):
    """Eq. 17 in integers: live centroids before the token at `position`."""
    return position * max_centroids // (position + max_centroids)


def _first_assignment(keys, n_new):
    """Chunk 0: all to centroid 0, but the n_new-1 keys least like key 0 start their own."""
    similarity = torch.matmul(keys, keys[..., 0, :].unsqueeze(-1)).squeeze(-1)
    similarity[..., 0] = float("inf")  # key 0 itself is never chosen
    order = similarity.sort(dim=-1, stable=True).indices[..., :n_new - 1]
    fresh = torch.arange(1, n_new, device=keys.device).expand_as(order)
    return torch.zeros(keys.shape[:-1], dtype=torch.int64, device=keys.device).scatter_(
        -1, order, fresh)


@torch.no_grad()
def assign_chunk(keys, centroids, n_new):
    """Row of every key of a chunk: [batch, n_kv_heads, chunk_len].

    The n_new keys least similar to their nearest old centroid become new centroids in ascending
    order of that similarity; the others merge into that centroid. Ties go to the lower index.
    """
    n_old = centroids.shape[-2]
    if n_old == 0:
        return _first_assignment(keys, n_new)
    similarity = torch.matmul(keys, centroids.transpose(-1, -2))
    best, nearest = similarity.max(dim=-1)
    order = best.sort(dim=-1, stable=True).indices[..., :n_new]
    fresh = torch.arange(n_old, n_old + n_new, device=keys.device).expand_as(order)
    return nearest.scatter_(-1, order, fresh)


def merge_chunk(rows, counts, keys_values, assignment, n_new):
    """Eq. 19 over a chunk: row += sum (key - row_old) / count_new over the keys assigned to it."""
    batch, n_heads, _, width = rows.shape
    rows = torch.cat((rows, rows.new_zeros(batch, n_heads, n_new, width)), dim=2)
    old = torch.cat((counts, counts.new_zeros(batch, n_heads, n_new)), dim=2)
    counts = old.scatter_add(2, assignment, torch.ones_like(assignment))
    kept = (old.to(rows.dtype) / counts).unsqueeze(-1)  # 1 - (keys assigned) / count_new
    share = keys_values / counts.gather(2, assignment).unsqueeze(-1)
    index = assignment.unsqueeze(-1).expand_as(share)
    return (rows * kept).scatter_add(2, index, share), counts


def _chunk_bias(counts, group, n_tokens, dtype):
    """ln(count) for centroids, 0 for the chunk's own keys up to the query (eq. 15).

    [batch, n_kv_heads, group * n_tokens, n_centroids + n_tokens]
    """
    future = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=counts.device).triu(1)
    own = minus_infinity_where(future).to(dtype).repeat(group, 1)
    logs = counts.to(dtype).log().unsqueeze(2).expand(-1, -1, group * n_tokens, -1)
    return torch.cat((logs, own.expand(*counts.shape[:2], -1, -1)), dim=-1)


def _read_chunk(q, k, v, rows, counts):
    """One softmax over the centroids and the chunk's own keys (eq. 15)."""
    group, n_tokens, head_dim = q.shape[2:]
    keys = torch.cat((rows[..., :head_dim].to(k.dtype), k), dim=2)
    values = torch.cat((rows[..., head_dim:].to(v.dtype), v), dim=2)
    bias = _chunk_bias(counts, group, n_tokens, rows.dtype)
    # the group's queries read the same keys: one product for all of them
    return attend(q.flatten(2, 3), keys, values, bias).unflatten(2, (group, n_tokens))


def ovq_attention(q, k, v, chunk_len, max_centroids):
    """The chunk loop: attend first, then, if the chunk is full, update the dictionary."""
    batch, n_heads, n_tokens, head_dim = k.shape
    keys_values = wide(torch.cat((k, v), dim=-1))
    rows = keys_values.new_zeros(batch, n_heads, 0, keys_values.shape[-1])
    counts = torch.zeros(batch, n_heads, 0, dtype=torch.int64, device=k.device)
    outs = []
    for begin in range(0, n_tokens, chunk_len):
        end = min(begin + chunk_len, n_tokens)
        outs.append(_read_chunk(q[..., begin:end, :], k[:, :, begin:end], v[:, :, begin:end],
                                rows, counts))
        if end < n_tokens:  # an update that no later token reads is not worth its time
            n_new = n_centroids_at(end, max_centroids) - rows.shape[2]
            chunk = keys_values[:, :, begin:end]
            assignment = assign_chunk(chunk[..., :head_dim], rows[..., :head_dim], n_new)
            rows, counts = merge_chunk(rows, counts, chunk, assignment, n_new)
    return torch.cat(outs, dim=-2)
