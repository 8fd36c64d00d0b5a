"""The sequence mixers of the reference: everything between q, k, v and o_proj.

Shared shapes: q [batch, n_kv_heads, group, n_tokens, head_dim], k [batch, n_kv_heads, n_tokens,
head_dim], v [batch, n_kv_heads, n_tokens, value_head_dim]; the result has q's shape with
value_head_dim. q and k are unit norm and q is already multiplied by its head's beta, so that a
score is a plain dot product. Products run in the dtype of q, k and v; everything else in that
dtype or float32, whichever is wider.
Equation numbers are those of "Online Vector Quantized Attention" (Alonso et al.).
"""

import torch
import torch.nn.functional as F

from ovq import fused

# Queries that full attention handles at once: bounds its memory by this many rows of scores.
_FULL_BLOCK_LEN = 256


def wide(x):
    """x in float32, or in float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rope_tables(n_tokens, head_dim, theta, device):
    """Cosines and sines [n_tokens, head_dim/2]; float32 angles would drift at long positions."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    positions = torch.arange(n_tokens, dtype=torch.float64, device=device)
    angles = positions[:, None] * theta ** -exponents
    return angles.cos(), angles.sin()


def position_table(positions, dim, base):
    """[n, dim] of positions [n]: sines, then cosines, of angles position * base^(-2i/dim)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
    angles = positions.double()[:, None] * base ** -exponents
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def rotate_half(x, tables):
    """RoPE: channels i and i + head_dim/2 of x [batch, n_tokens, heads, head_dim] are one pair."""
    cos, sin = (table.to(x.dtype).unsqueeze(1) for table in tables)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def unit_norm(x, scale=1.0):
    """scale * x / |x| over the last dimension; scale [..., 1] joins the factor before x does."""
    return x * (torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) * scale)


def attend(q, keys, values, ranges, bias=None):
    """softmax(q keys^T + bias) values, for q [..., rows, d], every row over a range of the keys.

    ranges: int32 [2, ..., rows], broadcast to the rows: the first key and the one past the last.
    bias: [..., n_keys], the same for every row, or None.
    """
    scores = torch.matmul(q, keys.transpose(-1, -2))
    if fused.usable(scores, scores.dtype):
        return torch.matmul(fused.Softmax.apply(scores, ranges, bias), values)
    key = torch.arange(keys.shape[-2], device=q.device)
    begins, ends = ranges.unsqueeze(-1)
    scores = wide(scores) if bias is None else wide(scores) + bias.unsqueeze(-2)
    scores = scores.masked_fill((key < begins) | (key >= ends), float("-inf"))
    return torch.matmul(scores.softmax(dim=-1).to(values.dtype), values)


def ranges_up_to(first, n_rows, device):
    """For attend: row i reads the first + i keys from the start on. [2, n_rows]"""
    ends = torch.arange(first, first + n_rows, dtype=torch.int32, device=device)
    return torch.stack((torch.zeros_like(ends), ends))


def _window_ranges(n_blocks, window_len, device):
    """[2, n_blocks, window_len]: a block's queries on the block before and their own."""
    begins = torch.arange(1, window_len + 1, dtype=torch.int32, device=device).repeat(n_blocks, 1)
    ends = begins + window_len
    begins[0] = window_len  # nothing stands before the first block
    return torch.stack((begins, ends))


def _with_previous_block(x):
    """[..., n_blocks, len, dim] -> [..., n_blocks, 2*len, dim], the first preceded by zeros."""
    previous = F.pad(x[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    return torch.cat((previous, x), dim=-2)


def sliding_attention(q, k, v, window_len):
    """Each query reads the window_len keys that end with its own; blocks, never T x T."""
    n_tokens = k.shape[2]
    n_blocks = -(-n_tokens // window_len)
    padding = (0, 0, 0, n_blocks * window_len - n_tokens)
    q, k, v = (F.pad(x, padding).unflatten(-2, (n_blocks, window_len)) for x in (q, k, v))
    ranges = _window_ranges(n_blocks, window_len, q.device)
    keys, values = _with_previous_block(k).unsqueeze(2), _with_previous_block(v).unsqueeze(2)
    out = attend(q, keys, values, ranges)
    return out.flatten(-3, -2)[..., :n_tokens, :]


def full_attention(q, k, v):
    """Causal attention over the whole past, a block of queries at a time (eq. 2)."""
    outs = []
    for begin in range(0, k.shape[2], _FULL_BLOCK_LEN):
        end = min(begin + _FULL_BLOCK_LEN, k.shape[2])
        ranges = ranges_up_to(begin + 1, end - begin, q.device)
        outs.append(attend(q[..., begin:end, :], k[:, :, None, :end], v[:, :, None, :end], ranges))
    return torch.cat(outs, dim=-2)


def quantize(keys, codebook):
    """Every key [batch, n_kv_heads, n_tokens, head_dim] replaced by its nearest code.

    codebook [n_kv_heads, codebook_size, head_dim]. The gradient is DiVeQ's (Vali et al. 2025): a
    quantized key is key + |code - key| d with the direction d held constant, so that the loss
    reaches the key as if it were not quantized, and both through the length of their difference.
    """
    keys, codes = wide(keys), wide(codebook)
    with torch.no_grad():
        # argmin |k - code|^2 without the term that is the same for every code
        distances = codes.square().sum(-1)[:, None, :] - 2 * torch.matmul(
            keys, codes.transpose(-1, -2).to(keys.dtype))
        nearest = distances.argmin(dim=-1)  # [batch, n_kv_heads, n_tokens]
    heads = torch.arange(codebook.shape[0], device=keys.device)[None, :, None]
    chosen = codes[heads, nearest]
    if not torch.is_grad_enabled():
        return chosen
    difference = chosen - keys
    length = (difference.square().sum(-1, keepdim=True) + 1e-12).sqrt()
    return keys + length * (difference / length).detach()


def vq_attention(q, k, v, codebook):
    """Causal attention on quantized keys (eq. 3)."""
    return full_attention(q, quantize(k, codebook).to(k.dtype), v)
