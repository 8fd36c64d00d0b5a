"""Mamba-2: "Transformers are SSMs" (Dao and Gu 2024), in the chunked form of its section 6.

The layer is the published code's: one projection for everything, one short convolution over inputs,
B and C, a gated norm in groups."""

import torch
from torch import nn
import torch.nn.functional as F

from ovq.chunks import decays_between, in_chunks, out_of_chunks, states_before
from ovq.layers import (Projection, ShortConvolution, Weight, decay_parameters, rms_norm, softplus,
                        split_heads)
from ovq.mixers import wide

_CHUNK_LEN = 64


def selective_scan(x, b, c, log_decay):
    """Returns S c after S <- exp(log_decay) S + x b^T, with S = 0 at the start.

    x [batch, n_heads, n_tokens, head_dim]; b and c [batch, n_groups, n_tokens, state_size], each
    group shared by equally many heads; log_decay [batch, n_heads, n_tokens]."""
    n_tokens, n_shared = x.shape[2], x.shape[1] // b.shape[1]
    x, b, c, log_decay = (in_chunks(y, _CHUNK_LEN) for y in (x, b, c, log_decay))
    sums = log_decay.cumsum(-1)
    end = sums[..., -1:]
    inside = torch.matmul(c, b.transpose(-1, -2)).repeat_interleave(n_shared, dim=1)
    y = torch.matmul(inside * decays_between(sums), x)
    b, c = (side.repeat_interleave(n_shared, dim=1) for side in (b, c))
    added = torch.matmul(b.transpose(-1, -2), (end - sums).exp().unsqueeze(-1) * x)
    states = states_before(added, end.squeeze(-1))
    return out_of_chunks(y + torch.matmul(sums.exp().unsqueeze(-1) * c, states), n_tokens)


class Mamba2(nn.Module):
    def __init__(self, config, section):
        super().__init__()
        d_model, std, self.section, self.eps = (config.hidden_size, config.hidden_size ** -0.5,
                                                section, config.rms_norm_eps)
        n_heads, inner = section.num_heads, section.inner_size
        bias = 0.0 if section.use_bias else None
        self.in_proj = Projection(d_model, inner + section.conv_channels + n_heads, std, bias)
        self.conv1d = ShortConvolution(section.conv_channels, section.conv_kernel,
                                       section.use_conv_bias)
        self.A_log, self.dt_bias = decay_parameters(n_heads)
        self.D = nn.Parameter(torch.ones(inner if section.D_has_hdim else n_heads))
        if section.rmsnorm:
            self.norm = Weight(inner)
        self.out_proj = Projection(inner, d_model, (inner * 2 * config.num_hidden_layers) ** -0.5,
                                   bias)

    def _gated(self, y, z):
        """Norm of y [batch, n_tokens, inner] in groups, gated by z before or after it."""
        gate = F.silu(z)
        if not self.section.rmsnorm:
            return y * gate
        if not self.section.norm_before_gate:
            y, gate = y * gate, 1
        groups = y.unflatten(-1, (self.section.n_groups, -1))
        return rms_norm(groups, self.eps).flatten(2) * self.norm.weight * gate

    def forward(self, x):
        section = self.section
        inner, side = section.inner_size, section.n_groups * section.state_size
        z, conv, dt = wide(self.in_proj(x)).split(
            (inner, section.conv_channels, section.num_heads), dim=-1)
        inputs, b, c = self.conv1d(conv).split((inner, side, side), dim=-1)
        dt = softplus(dt + self.dt_bias)
        if section.dt_limit is not None:
            dt = dt.clamp(*section.dt_limit)
        dt = dt.transpose(1, 2)
        inputs = split_heads(inputs, section.num_heads)
        y = selective_scan(inputs * dt.unsqueeze(-1), split_heads(b, section.n_groups),
                           split_heads(c, section.n_groups), -self.A_log.exp()[:, None] * dt)
        y = y + self.D.view(section.num_heads, 1, -1) * inputs
        return self.out_proj(self._gated(y.transpose(1, 2).flatten(2), z).to(x.dtype))
