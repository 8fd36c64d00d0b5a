"""KVM attention: a block sliding window and a growing table of merged keys in one softmax.

"Key-Value Means" (KVM), including the behaviour of its published code. Positions count from 0, in
chunks of chunk_len. A query reads its own chunk up to itself and the n_bswa_chunks - 1 chunks
before. Tokens that leave this window become rows (slots) of the table or are merged into their most
similar row. The assignment is computed without gradients; rows are sums of tokens, so gradients
reach every token that was ever merged.

Shapes as in mixers.py with n_kv_heads = n_heads and group = 1. A row has a key [head_dim], a value
[value_head_dim], of which only the direction counts, and a length, which scales that direction."""

import typing

import torch
import torch.nn.functional as F

from ovq.mixers import attend, full_attention, ranges_up_to, wide

_NORM_EPS = 1e-5


class Weights(typing.NamedTuple):
    """Parameters of the mixer, except those of the gates."""

    norm_weight: torch.Tensor  # [head_dim], like norm_bias: a LayerNorm of the table's keys
    norm_bias: torch.Tensor
    window_temp: typing.Optional[torch.Tensor] = None  # [n_heads], factor of keys; None: 1
    row_temp: typing.Optional[torch.Tensor] = None

    def norm(self, keys):
        return F.layer_norm(keys, keys.shape[-1:], self.norm_weight.to(keys.dtype),
                            self.norm_bias.to(keys.dtype), _NORM_EPS)


class Rows(typing.NamedTuple):
    keys: torch.Tensor  # [batch, n_heads, n_rows, head_dim]
    values: torch.Tensor  # [batch, n_heads, n_rows, value_head_dim]
    lengths: torch.Tensor  # [batch, n_heads, n_rows]

    def concat(self, other):
        return Rows(*(torch.cat(both, dim=2) for both in zip(self, other)))


class Tokens(typing.NamedTuple):
    """Tokens of a chunk, prepared for the table: [batch, n_heads, n_tokens, dim]."""

    keys: torch.Tensor  # normalized, without the masked channels
    values: torch.Tensor
    gated_keys: torch.Tensor
    gated_values: torch.Tensor

    def gather(self, index):
        """Selects the tokens at index [batch, n_heads, n]."""
        return Tokens(*(x.gather(2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))
                        for x in self))


def token_gates(scores):
    """Returns how much of a token a row receives, from key_weighting's products."""
    return 1 + F.elu(scores)


def n_rows_at(position, n_rows, settings, max_rows):
    """Returns the rows that the chunk at `position` reads; the previous chunk read n_rows."""
    target = settings.budget(position)
    return max(min(target, settings.chunk_len * settings.n_max_d_chunks, max_rows), n_rows)


def _new_rows(keys, values, settings):
    lengths = (torch.linalg.vector_norm(values, dim=-1) if settings.use_vlens
               else torch.ones_like(values[..., 0]))
    return Rows(keys, values, lengths)


def _appended(tokens, gated, settings):
    if gated:
        return _new_rows(tokens.gated_keys, tokens.gated_values, settings)
    return _new_rows(tokens.keys, tokens.values, settings)


@torch.no_grad()
def split_tokens(tokens, rows, n_new, weights):
    """Splits tokens into new rows and merged ones: indices, each in order of position.

    The n_new tokens least similar to their most similar row become rows."""
    similarity = torch.matmul(tokens.keys, weights.norm(rows.keys).transpose(-1, -2)).amax(-1)
    order = similarity.sort(dim=-1, stable=True).indices
    return order[..., :n_new].sort(-1).values, order[..., n_new:].sort(-1).values


@torch.no_grad()
def route(tokens, rows, weights, sink_len):
    """Returns the row that each token is merged into: [batch, n_heads, n_tokens].

    No token is merged into a sink; if a cap leaves no other row, the last one is not a sink."""
    sink_len = min(sink_len, rows.keys.shape[2] - 1)
    keys = weights.norm(rows.keys[:, :, sink_len:])
    return torch.matmul(tokens.gated_keys, keys.transpose(-1, -2)).argmax(-1) + sink_len


def _merge(tokens, rows, weights, settings):
    index = route(tokens, rows, weights, settings.sink_len).unsqueeze(-1)
    keys, values = (
        old.scatter_add(2, index.expand_as(new), new) for old, new in
        ((rows.keys, tokens.gated_keys), (rows.values, tokens.gated_values)))
    # Without lengths the published code counts a merge for every row: its reduction, over the wrong
    # axis, only broadcasts while a whole chunk is merged into as many rows.
    lengths = rows.lengths if settings.use_vlens else rows.lengths + 1
    return Rows(keys, values, lengths)


def first_rows(tokens, weights, settings, max_rows):
    """Builds the table after the first chunk: one row for each token, as far as max_rows allows."""
    chunk_len = tokens.keys.shape[2]
    n_rows = min(chunk_len, max_rows)
    first = Tokens(*(x[:, :, :n_rows] for x in tokens))
    if settings.apply_merge_gate_to_initial_state:
        # unlike appended rows', these lengths are computed from the values before the gate
        rows = Rows(first.gated_keys, first.gated_values,
                    _new_rows(first.keys, first.values, settings).lengths)
    else:
        rows = _new_rows(first.keys, first.values, settings)
    if n_rows == chunk_len:
        return rows
    return _merge(Tokens(*(x[:, :, n_rows:] for x in tokens)), rows, weights, settings)


def updated_rows(tokens, rows, n_new, weights, settings):
    """Returns the table after the tokens of a chunk have entered it."""
    n_tokens, gated = tokens.keys.shape[2], settings.apply_merge_gate_to_appends
    if n_new == n_tokens:
        return rows.concat(_appended(tokens, gated, settings))
    if n_new > 0:
        fresh, merged = split_tokens(tokens, rows, n_new, weights)
        rows = rows.concat(_appended(tokens.gather(fresh), gated, settings))
        tokens = tokens.gather(merged)
    return _merge(tokens, rows, weights, settings)


def read_rows(q, keys, values, rows, weights, settings):
    """One softmax over the rows and the window's keys, which end with the queries' own."""
    row_keys, row_values = weights.norm(rows.keys), rows.values
    if weights.row_temp is not None:
        row_keys = row_keys * weights.row_temp[:, None, None]
    if settings.use_vlens:
        row_values = F.normalize(row_values, dim=-1, eps=1e-12) * rows.lengths.unsqueeze(-1)
    else:
        row_values = row_values / rows.lengths.unsqueeze(-1)
    if settings.values_round_to_bfloat16:
        row_values = row_values.bfloat16()
    n_before = rows.keys.shape[2] + keys.shape[2] - q.shape[3]
    out = attend(q.squeeze(2), torch.cat((row_keys.to(keys.dtype), keys), 2),
                 torch.cat((row_values.to(values.dtype), values), 2),
                 ranges_up_to(n_before + 1, q.shape[3], q.device))
    return out.unsqueeze(2)


def tokens_of_chunks(k, v, gates, weights, settings):
    """Prepares the tokens of every chunk for the table."""
    masked = settings.masked_dims
    keys, values = weights.norm(F.pad(wide(k[..., masked:]), (masked, 0))), wide(v)
    gates = gates.unsqueeze(-1) if gates is not None else 1
    gated = (keys * gates if settings.use_merge_gate_keys else keys,
             values * gates if settings.use_merge_gate_values else values)
    # split, not slices: the gradient of a slice is a tensor of the whole's size
    return [Tokens(*chunk) for chunk in zip(*(x.split(settings.chunk_len, dim=2)
                                              for x in (keys, values, *gated)))]


def kvm_attention(q, k, v, gates, weights, settings, max_rows=None):
    """q, k and v as in mixers.py; gates [batch, n_heads, n_tokens], or None if there are none.

    settings: a KvmConfig. max_rows: a session's cap on the table's rows; None: the config's."""
    max_rows = settings.max_centroids if max_rows is None else max_rows
    chunk_len, n_window = settings.chunk_len, settings.n_bswa_chunks
    taken = tokens_of_chunks(k, v, gates, weights, settings)
    if weights.window_temp is not None:
        k = (k * weights.window_temp[:, None, None]).to(k.dtype)
    window_len = n_window * chunk_len
    outs = [full_attention(q[..., :window_len, :], k[:, :, :window_len], v[:, :, :window_len])]
    queries, keys, values = (x.split(chunk_len, dim=-2) for x in (q, k, v))
    rows = None
    for c in range(n_window, len(keys)):
        if rows is None:
            rows = first_rows(taken[0], weights, settings, max_rows)
        else:
            n_old = rows.keys.shape[2]
            n_new = min(n_rows_at(c * chunk_len, n_old, settings, max_rows) - n_old, chunk_len)
            rows = updated_rows(taken[c - n_window], rows, n_new, weights, settings)
        window = slice(c - n_window + 1, c + 1)
        outs.append(read_rows(queries[c], torch.cat(keys[window], 2), torch.cat(values[window], 2),
                          rows, weights, settings))
    return torch.cat(outs, dim=-2)
