"""Gated delta rule: "Gated Delta Networks" (Yang et al. 2024), in the chunk form of its section 3.3.

A layer as flash-linear-attention's GatedDeltaNet has it: short convolutions, unit keys and queries,
a norm for each head, an output gate.
"""

import torch
from torch import nn
import torch.nn.functional as F

from ovq.chunks import decays_between, in_chunks, out_of_chunks
from ovq.layers import (Projection, ShortConvolution, Weight, decay_parameters, rms_norm, softplus,
                        split_heads, split_product, unit)

_CHUNK_LEN = 32


def gated_delta_rule(q, k, v, beta, log_alpha):
    """What queries read after S <- alpha S, S <- S + beta k (v - S^T k)^T, both from zero.

    q, k [batch, n_heads, n_tokens, head_dim], v [..., value_head_dim], beta and log_alpha [batch,
    n_heads, n_tokens].
    """
    n_tokens = q.shape[2]
    q, k, v, beta, log_alpha = (in_chunks(x, _CHUNK_LEN) for x in (q, k, v, beta, log_alpha))
    sums = log_alpha.cumsum(-1)
    between = decays_between(sums)
    grown = sums.exp().unsqueeze(-1)
    # U = written - erased S: each token's error, times beta, against the state that it meets
    meets = (beta.unsqueeze(-1) * torch.matmul(k, k.transpose(-1, -2)) * between).tril(-1)
    sides = torch.cat((v, grown * k), -1) * beta.unsqueeze(-1)
    solved = torch.linalg.solve_triangular(
        meets + torch.eye(_CHUNK_LEN, dtype=q.dtype, device=q.device), sides, upper=False,
        unitriangular=True)
    written, erased = (x.unbind(2) for x in solved.split((v.shape[-1], k.shape[-1]), -1))
    inside = (torch.matmul(q, k.transpose(-1, -2)) * between).unbind(2)
    readers = (grown * q).unbind(2)
    end = sums[..., -1:]
    keys = ((end - sums).exp().unsqueeze(-1) * k).transpose(-1, -2).unbind(2)
    kept = end.exp().unsqueeze(-1).unbind(2)
    outs, state = [], None
    for c, update in enumerate(written):
        if state is None:
            outs.append(torch.matmul(inside[c], update))
            state = torch.matmul(keys[c], update)
            continue
        update = update - torch.matmul(erased[c], state)
        outs.append(torch.matmul(readers[c], state) + torch.matmul(inside[c], update))
        state = kept[c] * state + torch.matmul(keys[c], update)
    return out_of_chunks(torch.stack(outs, 2), n_tokens)


class GatedDeltaNet(nn.Module):
    def __init__(self, config, section):
        super().__init__()
        d_model, std, self.section, self.eps = (config.hidden_size, config.hidden_size ** -0.5,
                                                section, config.rms_norm_eps)
        key_dim = section.num_heads * section.head_dim
        value_dim = section.value_heads * section.value_head_dim
        for name, dim in (("q", key_dim), ("k", key_dim), ("v", value_dim)):
            setattr(self, f"{name}_proj", Projection(d_model, dim, std))
            if section.use_short_conv:
                setattr(self, f"{name}_conv1d",
                        ShortConvolution(dim, section.conv_size, section.conv_bias))
        self.a_proj = Projection(d_model, section.value_heads, std)
        self.b_proj = Projection(d_model, section.value_heads, std)
        self.A_log, self.dt_bias = decay_parameters(section.value_heads)
        if section.use_gate:
            self.g_proj = Projection(d_model, value_dim, std)
        self.o_norm = Weight(section.value_head_dim)
        self.o_proj = Projection(value_dim, d_model,
                                 (value_dim * 2 * config.num_hidden_layers) ** -0.5)

    def forward(self, x):
        section = self.section
        projections = [self.q_proj, self.k_proj, self.v_proj, self.a_proj, self.b_proj]
        if section.use_gate:
            projections.append(self.g_proj)
        q, k, v, a, b, *gate = split_product(x, *projections)
        if section.use_short_conv:
            q, k, v = self.q_conv1d(q), self.k_conv1d(k), self.v_conv1d(v)
        else:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q, k = (unit(split_heads(y, section.num_heads)).repeat_interleave(
            section.value_heads // section.num_heads, dim=1) for y in (q, k))
        beta = b.sigmoid().transpose(1, 2) * (2 if section.allow_neg_eigval else 1)
        log_alpha = (-self.A_log.exp() * softplus(a + self.dt_bias)).transpose(1, 2)
        y = gated_delta_rule(q * section.head_dim ** -0.5, k,
                             split_heads(v, section.value_heads), beta, log_alpha)
        y = (rms_norm(y, self.eps) * self.o_norm.weight).transpose(1, 2).flatten(2)
        if section.use_gate:
            y = y * F.silu(gate[0])
        return self.o_proj(y.to(x.dtype))
