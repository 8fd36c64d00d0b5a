"""Parts that the decoder and its mixers are made of; parameters have the format's tensor names."""

import math

import torch
from torch import nn
import torch.nn.functional as F

from ovq import fused
from ovq.mixers import wide

_FIRST_HALF_LIFE, _LAST_HALF_LIFE = 16, 16384  # tokens


class RmsNorm(nn.Module):
    """Root-mean-square norm with a weight, computed in the residual's dtype, given in dtype."""

    def __init__(self, dim, eps, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        if bias:
            self.bias = nn.Parameter(torch.zeros(dim))
        self.eps, self.has_bias = eps, bias

    def forward(self, x, dtype):
        if fused.usable(x, dtype) and not self.has_bias:
            return fused.RmsNorm.apply(x, self.weight, self.eps, dtype)
        y = rms_norm(x, self.eps) * self.weight
        return (y + self.bias if self.has_bias else y).to(dtype)


def rms_norm(x, eps):
    """x / sqrt(mean(x^2) + eps) over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Weight(nn.Module):
    """A tensor `.weight` of ones, which another module applies."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*shape))


class Projection(nn.Module):
    """y = W x, plus a bias that begins as a constant if one is given, in x's dtype."""

    def __init__(self, in_dim, out_dim, std, bias=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_dim, in_dim) * std)
        self.bias = None if bias is None else nn.Parameter(torch.full((out_dim,), float(bias)))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype),
                        None if self.bias is None else self.bias.to(x.dtype))


def joint_product(x, *projections):
    """What several projections without bias make of x, side by side, as one product."""
    return F.linear(x, torch.cat([one.weight for one in projections]).to(x.dtype))


def split_product(x, *projections):
    """What each of several projections without bias makes of x, at least float32."""
    sizes = [len(one.weight) for one in projections]
    return wide(joint_product(x, *projections)).split(sizes, dim=-1)


class ShortConvolution(nn.Module):
    """silu of a causal, depthwise convolution; the last tap meets the current token."""

    def __init__(self, n_channels, n_taps, bias):
        super().__init__()
        bound = n_taps ** -0.5  # PyTorch's own start of a convolution
        self.weight = nn.Parameter(torch.empty(n_channels, 1, n_taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x):
        """x [batch, n_tokens, n_channels], zeros before the first token."""
        n_taps = self.weight.shape[-1]
        padded = F.pad(x, (0, 0, n_taps - 1, 0))
        y = F.conv1d(padded.transpose(1, 2), self.weight, self.bias, groups=x.shape[-1])
        return F.silu(y).transpose(1, 2)


def unit(x):
    """x / sqrt(sum(x^2) + 1e-6) over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def softplus(x):
    """ln(1 + e^x), linear from 40 on, where float64 has the same; PyTorch's own is from 20 on."""
    return F.softplus(x, threshold=40)


def split_heads(x, n_heads):
    """[batch, n_tokens, n_heads * dim] -> [batch, n_heads, n_tokens, dim]"""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def half_lives(n_heads):
    """Half lives [n_heads] in tokens that heads start with, from short to long.

    Each is the middle of its part of the range, in the logarithm. Published code draws decays at random
    for dozens of heads, of which some come to be slow. A head that forgets within a few tokens gets
    no gradient from what stands further back, so few heads must not depend on luck.
    """
    shares = (torch.arange(n_heads) + 0.5) / n_heads
    return _FIRST_HALF_LIFE * (_LAST_HALF_LIFE / _FIRST_HALF_LIFE) ** shares


def decay_parameters(n_heads):
    """A_log and dt_bias [n_heads], of a decay exp(-exp(A_log) softplus(. + dt_bias)) at the start.

    softplus(dt_bias) is the largest that published code draws, as it also scales what a head of Mamba-2
    writes beside its D x; exp(A_log) gives the head its half life.
    """
    steps = torch.full((n_heads,), 0.1)
    return (nn.Parameter(torch.log(math.log(2) / (half_lives(n_heads) * steps))),
            nn.Parameter(steps + torch.log(-torch.expm1(-steps))))
