"""MesaNet: "Locally Optimal Test-Time Training" (von Oswald et al. 2025).

The layer is flash-linear-attention's MesaNet: a query is first solved against the sum of decayed
key products, by a fixed number of conjugate gradient iterations from zero."""

import math

import torch
from torch import nn
import torch.nn.functional as F

from ovq import fused
from ovq.chunks import decays_between, in_chunks, out_of_chunks, states_before
from ovq.layers import (Projection, ShortConvolution, Weight, half_lives, rms_norm, softplus,
                        split_heads, split_product, unit)
from ovq.mixers import wide

_CHUNK_LEN = 32
_DAMPING = 1e-5  # a constant of the published iteration: part of the model
# Chunks that the iteration treats together, so that their vectors stay in the processor's cache.
_BLOCK_CHUNKS = 16


def key_products(p, keys, weights, states, grown, ridge):
    """Multiplies each row of p [n, chunk_len, d] by its own matrix of decayed key products.

    Row i's matrix is grown_i state + sum_j weights_ij k_j k_j^T + diag(ridge), with keys [n,
    chunk_len, d], weights [n, chunk_len, chunk_len], states [n, d, d], grown [n, chunk_len, 1] and
    ridge [n, 1, d]."""
    inside = torch.matmul(torch.matmul(p, keys.transpose(1, 2)) * weights, keys)
    return torch.matmul(p, states) * grown + inside + ridge * p


def conjugate_gradients(q, operator, n_steps):
    """Runs n_steps of the published iteration towards operator(u) = q, row by row, from u = 0."""
    u, r, p = torch.zeros_like(q), q, q
    error = r.square().sum(-1, keepdim=True)
    for _ in range(n_steps):
        product = operator(p)
        rate = error / ((p * product).sum(-1, keepdim=True) + _DAMPING)
        u = u + rate * p
        r = r - rate * product
        left = r.square().sum(-1, keepdim=True)
        p = r + left / (error + _DAMPING) * p
        error = left
    return u


def _solve(q, operands, n_steps, compiled):
    if compiled and q.shape[-1] % fused.SOLVE_LANES == 0:
        dense = [x.contiguous() for x in (q, *operands)]
        return fused.mesa_solve(dense[0], dense[1:], n_steps, _DAMPING)
    blocks = zip(*(x.split(_BLOCK_CHUNKS) for x in (q, *operands)))
    return torch.cat([conjugate_gradients(q, lambda p, rest=rest: key_products(p, *rest), n_steps)
                      for q, *rest in blocks])


class MesaSolve(torch.autograd.Function):
    """Returns u with key_products(u, *operands) ~ q, with the gradient of the exact solution.

    The gradient of u = M^-1 q: with w = M^-1 (du), q gets w and M u at a fixed u gets -w (implicit
    differentiation, as in the published kernels); w comes from the same iteration. compiled: use
    solve.cc if possible."""

    @staticmethod
    def forward(ctx, q, n_steps, compiled, *operands):
        u = _solve(q, operands, n_steps, compiled)
        ctx.n_steps, ctx.compiled = n_steps, compiled
        ctx.save_for_backward(u, *operands)
        return u

    @staticmethod
    def backward(ctx, grad):
        u, *operands = ctx.saved_tensors
        # the iteration's damping is small relative to unit queries, so the rows are normalized
        # first
        scale = grad.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        w = _solve(grad / scale, operands, ctx.n_steps, ctx.compiled) * scale
        with torch.enable_grad():
            operands = [x.detach().requires_grad_() for x in operands]
            product = key_products(u, *operands)
            grads = torch.autograd.grad(product, operands, -w)
        return w, None, None, *grads


def mesa_attention(q, k, v, beta, log_gamma, ridge, n_steps, compiled=False):
    """Returns B^T u, u ~ (A + diag(ridge))^-1 q; A <- gamma A + beta k k^T, B <- gamma B + beta k
    v^T.

    q, k, v [batch, n_heads, n_tokens, head_dim], beta and log_gamma [batch, n_heads, n_tokens],
    ridge [n_heads, head_dim]. compiled: see MesaSolve."""
    n_tokens = q.shape[2]
    q, k, v, beta, log_gamma = (in_chunks(x, _CHUNK_LEN) for x in (q, k, v, beta, log_gamma))
    sums = log_gamma.cumsum(-1)
    end = sums[..., -1:]
    weights = decays_between(sums) * beta.unsqueeze(-2)
    late = ((end - sums).exp() * beta).unsqueeze(-1) * k  # the chunk's keys, decayed to its end
    added = torch.matmul(late.transpose(-1, -2), torch.cat((k, v), -1))
    products, readouts = states_before(added, end.squeeze(-1)).split(
        (k.shape[-1], v.shape[-1]), dim=-1)
    grown = sums.exp().unsqueeze(-1)
    ridges = ridge[:, None, None].expand(*q.shape[:3], 1, -1)
    flat = [x.flatten(0, 2) for x in (k, weights, products, grown, ridges)]
    u = MesaSolve.apply(q.flatten(0, 2), n_steps, compiled, *flat).view_as(q)
    inside = torch.matmul(torch.matmul(u, k.transpose(-1, -2)) * weights, v)
    return out_of_chunks(grown * torch.matmul(u, readouts) + inside, n_tokens)


def _gamma_bias(n_heads):
    """Returns biases of a_proj that give heads their half lives."""
    gamma = 0.5 ** (1 / half_lives(n_heads).double())
    return torch.log(gamma / (1 - gamma)).float()


class MesaNet(nn.Module):
    def __init__(self, config, section):
        super().__init__()
        d_model, std, self.section, self.eps = (config.hidden_size, config.hidden_size ** -0.5,
                                                section, config.rms_norm_eps)
        n_heads, dim = section.num_heads, section.num_heads * section.head_dim
        self.q_proj, self.k_proj, self.v_proj = (Projection(d_model, dim, std) for _ in range(3))
        self.a_proj = Projection(d_model, n_heads, std, bias=0)
        self.a_proj.bias = nn.Parameter(_gamma_bias(n_heads))
        self.b_proj = Projection(d_model, n_heads, std, bias=0)
        # ridges start at 1, or slightly above a lower bound that leaves no room for 1
        start = max(1 - section.lambda_lower_bound, 0.01)
        self.lambda_params = nn.Parameter(torch.full((dim,), math.log(math.expm1(start))))
        self.q_conv1d, self.k_conv1d = (
            ShortConvolution(dim, section.conv_size, section.conv_bias) for _ in range(2))
        if section.use_output_gate:
            self.g_proj = Projection(d_model, dim, std)
        self.o_norm = Weight(section.head_dim)
        self.o_proj = Projection(dim, d_model, (dim * 2 * config.num_hidden_layers) ** -0.5)

    def forward(self, x):
        section = self.section
        projections = [self.q_proj, self.k_proj, self.v_proj]
        if section.use_output_gate:
            projections.append(self.g_proj)
        q, k, v, *gate = split_product(x, *projections)
        q, k = (unit(split_heads(y, section.num_heads))
                for y in (self.q_conv1d(q), self.k_conv1d(k)))
        beta = wide(self.b_proj(x)).sigmoid().transpose(1, 2)
        log_gamma = F.logsigmoid(wide(self.a_proj(x))).transpose(1, 2)
        ridge = softplus(self.lambda_params).view(section.num_heads, -1) + \
            section.lambda_lower_bound
        y = mesa_attention(q, k, split_heads(v, section.num_heads), beta, log_gamma, ridge,
                           section.max_cg_step_training, fused.usable(x, x.dtype))
        y = (rms_norm(y, self.eps) * self.o_norm.weight).transpose(1, 2).flatten(2)
        if section.use_output_gate:
            y = y * F.silu(gate[0])
        return self.o_proj(y.to(x.dtype))
