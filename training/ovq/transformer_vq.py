"""Transformer-VQ: "Linear-Time Transformers via Vector Quantization" (Lingle 2023).

A gated attention unit over quantized keys. For the far past the published code keeps a mean value
for each code; this module computes the equivalent, every key's score in one softmax."""

import torch
from torch import nn
import torch.nn.functional as F

from ovq.layers import Projection, rms_norm, split_heads, split_product
from ovq.mixers import position_table, quantize, wide

_NORM_EPS = 1e-6  # for queries and keys, whatever the model's epsilon
_QUERY_BLOCK = 256  # bounds the memory of a training step to this many rows of scores


def attend_quantized(q, codes, v, biases, window_len, reads_far):
    """One softmax over the past, for q [batch, n_heads, n_tokens, dim] and quantized keys `codes`.

    biases [batch, n_heads, n_tokens, window_len + 1]: added to the score of a query at position t
    and the key at t - delta, by delta. reads_far: whether keys further back than window_len count.
    """
    n_tokens, device = q.shape[2], q.device
    position, outs = torch.arange(n_tokens, device=device), []
    for begin in range(0, n_tokens, _QUERY_BLOCK):
        end = min(begin + _QUERY_BLOCK, n_tokens)
        distance = position[begin:end, None] - position[:end]
        near = (distance >= 0) & (distance <= window_len)
        scores = torch.matmul(q[:, :, begin:end], codes[:, :, :end].transpose(-1, -2))
        index = distance.clamp(0, window_len).expand(*scores.shape)
        scores = scores + biases[:, :, begin:end].gather(-1, index) * near
        visible = distance >= 0 if reads_far else near
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        outs.append(torch.matmul(weights, v[:, :, :end]))
    return torch.cat(outs, dim=2)


class TransformerVq(nn.Module):
    """ablation: "exact_keys" has no codebook and reads keys as they are; others are not Transformer-VQ's."""

    def __init__(self, config, section, ablation="none"):
        super().__init__()
        d_model, std, self.section = config.hidden_size, config.hidden_size ** -0.5, section
        n_heads, head_dim = section.num_heads, section.head_dim
        key_dim, value_dim = n_heads * head_dim, n_heads * section.value_head_dim
        self.q_proj, self.k_proj = (Projection(d_model, key_dim, std) for _ in range(2))
        self.v_proj, self.g_proj = (Projection(d_model, value_dim, std) for _ in range(2))
        self.r_proj = Projection(d_model, key_dim, std)
        self.xl_u, self.xl_v = (nn.Parameter(torch.zeros(n_heads, head_dim)) for _ in range(2))
        self.scale = head_dim ** -0.25
        if ablation != "exact_keys":
            self.codebook = nn.Parameter(self._normed(
                torch.randn(n_heads, section.codebook_size, head_dim)))
        self.o_proj = Projection(value_dim, d_model,
                                 (value_dim * 2 * config.num_hidden_layers) ** -0.5)

    def _normed(self, x):
        return self.scale * rms_norm(x, _NORM_EPS)

    def keys(self, projected):
        """Returns keys [batch, n_heads, n_tokens, head_dim] before quantization, from k_proj's
        product."""
        return self._normed(split_heads(wide(projected), self.section.num_heads))

    def keys_to_code(self, x):
        """Returns all keys [n_heads, n_keys, head_dim] as the codebook replaces them."""
        return self.keys(self.k_proj(x)).transpose(0, 1).flatten(1, 2)

    def _distance_keys(self, dtype):
        """Returns R [n_heads, mem_len + 1, head_dim]."""
        weight = self.r_proj.weight
        positions = torch.arange(self.section.mem_len + 1, device=weight.device)
        table = position_table(positions, weight.shape[1], self.section.pe_lam).to(weight.dtype)
        return self.scale * split_heads(self.r_proj(table)[None], self.section.num_heads)[0].to(
            dtype)

    def forward(self, x):
        section = self.section
        q, k, v, gate = split_product(x, self.q_proj, self.k_proj, self.v_proj, self.g_proj)
        q = self._normed(split_heads(q, section.num_heads))
        codes = self.keys(k)
        if hasattr(self, "codebook"):
            codes = quantize(codes, self.codebook)
        by_content = q + self.scale * self.xl_u[:, None]
        by_distance = q + self.scale * self.xl_v[:, None]
        biases = torch.matmul(by_distance, self._distance_keys(q.dtype).transpose(-1, -2))
        y = attend_quantized(by_content, codes, split_heads(F.silu(v), section.num_heads), biases,
                             section.mem_len, section.agg_cache)
        y = y.transpose(1, 2).flatten(2) * F.silu(gate)
        return self.o_proj(y.to(x.dtype))
