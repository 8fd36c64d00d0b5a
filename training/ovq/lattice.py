"""Lattice: "Learning to Efficiently Compress the Memory" (Karami and Mirrokni 2025).

A memory of slots, updated by the gradient of one of the paper's losses; only the part orthogonal to
a slot is used. Equation numbers are the paper's; rows are its columns."""

import math

import torch
from torch import nn

from ovq import fused
from ovq.layers import (Projection, ShortConvolution, Weight, decay_parameters, rms_norm, softplus,
                        split_heads, split_product, unit)


def unit_slots(slots):
    """Normalizes slots [..., value_head_dim] to length 1, without an epsilon."""
    return slots / slots.norm(dim=-1, keepdim=True)


def slot_step(slots, k, v, objective, normalized, orthogonal=True):
    """Returns the update of every slot at rate 1: minus the loss's gradient, without its factor 2.

    slots [..., num_slots, value_head_dim], k [..., num_slots], v [..., value_head_dim]. objective:
    "dec" |phi(S) k - v|^2 (eq. 6), "enc" |phi(S)^T v - k|^2 (eq. 9) or "sim" -<phi(S)^T v, k> (eq.
    11); phi normalizes slots to length 1. normalized: they have length 1 already. Without `orthogonal` phi counts
    as a constant factor in the gradient, so that what is along a slot is written, too."""
    length = 1 if normalized else slots.norm(dim=-1, keepdim=True)
    phi, k, target = slots / length, k.unsqueeze(-1), v.unsqueeze(-2)
    if objective == "dec":
        target = target - (k * phi).sum(-2, keepdim=True)
    if objective == "enc":
        k = k - (phi * target).sum(-1, keepdim=True)
    if orthogonal:
        target = target - phi * (phi * target).sum(-1, keepdim=True)
    return k / length * target


def _shrunk(slots, threshold):
    """Moves elements towards 0 by a threshold, at most to 0 (eq. 18)."""
    return slots.sign() * (slots.abs() - threshold).clamp_min(0)


def lattice_memory(q, k, v, rate, forget, slots, section, orthogonal=True, compiled=False):
    """Returns the queries' results after every token's update, [batch, n_heads, n_tokens,
    value_head_dim].

    q, k [batch, n_heads, n_tokens, num_slots], v [..., value_head_dim], rate [batch, n_heads,
    n_tokens]; forget likewise, the rate of forgetting, or None; slots [n_heads, num_slots,
    value_head_dim], the initial ones. orthogonal: see slot_step. compiled: use slots.cc, as far as it has the
    section's rules."""
    slots = unit_slots(slots).expand(len(q), *slots.shape)
    if compiled and section.normalized_projection and (forget is None or section.regularization == "l2"):
        keep = torch.ones_like(rate) if forget is None else (-forget).exp()
        return fused.Slots.apply(q, k, v, rate, keep, slots, section.objective, orthogonal)
    rate = rate[..., None, None]
    decay = threshold = None
    if forget is not None and section.regularization == "l2":
        decay = (-forget).exp()[..., None, None]
    elif forget is not None:
        threshold = rate * forget[..., None, None]
    outs = []
    for t in range(q.shape[2]):
        step = slot_step(slots, k[:, :, t], v[:, :, t], section.objective,
                         section.normalized_projection, orthogonal)
        written = (slots if decay is None else decay[:, :, t] * slots) + rate[:, :, t] * step
        if threshold is not None:
            written = _shrunk(written, threshold[:, :, t])
        # a slot of zeros has no direction, so it is not updated
        empty = (written == 0).all(-1, keepdim=True)
        written = torch.where(empty, slots, written)
        slots = unit_slots(written) if section.normalized_projection else written
        outs.append((q[:, :, t].unsqueeze(-1) * slots).sum(-2))
    return torch.stack(outs, dim=2)


def _first_slots(section):
    """Returns initial slots for training: orthonormal, as far as dimensions allow."""
    shape = section.num_heads, section.num_slots, section.value_head_dim
    if section.num_slots > section.value_head_dim:
        return unit_slots(torch.randn(shape))
    return torch.linalg.qr(torch.randn(shape).transpose(1, 2)).Q.transpose(1, 2).contiguous()


class Lattice(nn.Module):
    """ablation: "whole_update" writes more than what is orthogonal to a slot (slot_step); others are not Lattice's."""

    def __init__(self, config, section, ablation="none"):
        super().__init__()
        self.orthogonal = ablation != "whole_update"
        d_model, std, self.section, self.eps = (config.hidden_size, config.hidden_size ** -0.5,
                                                section, config.rms_norm_eps)
        n_heads = section.num_heads
        key_dim, value_dim = n_heads * section.num_slots, n_heads * section.value_head_dim
        self.qk_proj = Projection(d_model, key_dim, std)
        self.q_conv1d, self.k_conv1d = (
            ShortConvolution(key_dim, section.conv_size, section.conv_bias) for _ in range(2))
        # The curvature of eq. 9 is |v|^2: with rates up to 1 slots swing, and gradients explode, unless |v| starts at
        # about 1. That of eq. 6 is |k|^2 = 1; eq. 11 is linear.
        v_std = std * section.value_head_dim ** -0.5 if section.objective == "enc" else std
        self.v_proj = Projection(d_model, value_dim, v_std)
        self.g_proj = Projection(d_model, value_dim, std)
        self.b_proj = Projection(d_model, n_heads, std)
        if section.use_forget_gate:
            self.a_proj = Projection(d_model, n_heads, std)
            self.A_log, self.dt_bias = decay_parameters(n_heads)
        self.initial_state = nn.Parameter(_first_slots(section))
        self.o_norm = Weight(section.value_head_dim)
        self.o_proj = Projection(value_dim, d_model,
                                 (value_dim * 2 * config.num_hidden_layers) ** -0.5)

    def forward(self, x):
        section = self.section
        projections = [self.qk_proj, self.v_proj, self.g_proj, self.b_proj]
        if section.use_forget_gate:
            projections.append(self.a_proj)
        shared, v, gate, b, *a = split_product(x, *projections)
        q, k = (unit(split_heads(convolution(shared), section.num_heads))
                for convolution in (self.q_conv1d, self.k_conv1d))
        forget = None
        if section.use_forget_gate:
            forget = (self.A_log.exp() * softplus(a[0] + self.dt_bias)).transpose(1, 2)
        y = lattice_memory(q, k, split_heads(v, section.num_heads), b.sigmoid().transpose(1, 2),
                           forget, self.initial_state, section, self.orthogonal, fused.usable(x, x.dtype))
        y = (rms_norm(y, self.eps) * self.o_norm.weight).transpose(1, 2).flatten(2)
        return self.o_proj((y * gelu_tanh(gate)).to(x.dtype))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
