"""The decoder's elementwise operations as C++ (fused.cc), for training on a CPU.

oneDNN's bfloat16 products are so fast that PyTorch's many passes over memory between them take most
of a training step's time; in float32 they take two thirds of it. Each Function here replaces plain
operations elsewhere in this package by one pass forward and one backward. tests/test_fused.py
compares results with those operations, and gradients, in float64, with finite differences."""

import ctypes
import functools
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch.autograd import Function

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SOURCES = ("fused.cc", "solve.cc", "slots.cc", "pairs.cc")
# Fast arithmetic applies to compiling only: linked with it, every thread would flush denormals.
_COMPILE = ("-std=c++17", "-O3", "-march=native", "-ffast-math", "-fPIC", "-c")


@functools.lru_cache(maxsize=None)
def compiled():
    """Compiles the C++ sources for this machine and loads them; None without a compiler."""
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory() as folder:
        linked = os.path.join(folder, "fused.so")
        made = [os.path.join(folder, f"{source}.o") for source in _SOURCES]
        try:
            for source, path in zip(_SOURCES, made):
                subprocess.run((compiler, *_COMPILE, os.path.join(_FOLDER, source), "-o", path),
                               check=True)
            subprocess.run((compiler, "-shared", *made, "-o", linked), check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{error}: training without its C++, more slowly", file=sys.stderr)
            return None
        return ctypes.CDLL(linked)


def usable(x, dtype, *read):
    """True if the Functions can replace operations around products in dtype on x's device.

    read: weights and inputs that they read as float32. In float32 only if gradients are needed: without them, float32 is the reference, in plain
    operations."""
    fits = dtype == torch.bfloat16 or dtype == torch.float32 and torch.is_grad_enabled()
    fits = fits and all(one.dtype == torch.float32 for one in read)
    return fits and x.device.type == "cpu" and compiled() is not None


def _call(name, dtype, *arguments):
    """Calls a function of the library: tensors become addresses, None null; numbers are unchanged.
    """
    suffix = str(dtype).removeprefix("torch.")
    converted = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            argument = ctypes.c_void_p(argument.data_ptr())
        elif isinstance(argument, int):
            argument = ctypes.c_int64(argument)
        elif isinstance(argument, float):
            argument = ctypes.c_double(argument)
        converted.append(argument)
    getattr(compiled(), f"{name}_{suffix}")(*converted)


class RmsNorm(Function):
    """x * rsqrt(mean(x^2) + eps) * weight in dtype, over the last dimension of x."""

    @staticmethod
    def forward(ctx, x, weight, eps, dtype):
        x = x.contiguous()
        y, scale = torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[:-1])
        _call("rms_norm_forward", dtype, x, weight, scale.numel(), x.shape[-1], eps, y, scale)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        grad = grad.contiguous()
        x_grad, weight_grad = torch.empty_like(x), torch.zeros_like(weight)
        _call("rms_norm_backward", grad.dtype, grad, x, weight, scale, scale.numel(), x.shape[-1],
              x_grad, weight_grad)
        return x_grad, weight_grad, None, None


class Shift(Function):
    """x [batch, n_tokens, channels], moved by mix [channels] towards the previous token."""

    @staticmethod
    def forward(ctx, x, mix):
        x, mix = x.contiguous(), mix.contiguous()
        y = torch.empty_like(x)
        _call("shift_forward", x.dtype, x, mix, *x.shape, y)
        ctx.save_for_backward(x, mix)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, mix = ctx.saved_tensors
        x_grad, mix_grad = torch.empty_like(x), torch.zeros_like(mix)
        _call("shift_backward", x.dtype, grad.contiguous(), x, mix, *x.shape, x_grad, mix_grad)
        return x_grad, mix_grad


class SplitHeads(Function):
    """Splits a joint product into q, k and v, each [batch, heads, n_tokens, dim].

    qkv [batch, n_tokens, n_heads * head_dim + n_kv_heads * (head_dim + value_dim)]. q is unit norm
    times beta [n_heads], k unit norm; with rope, the tables of rope_tables, both are rotated."""

    @staticmethod
    def forward(ctx, qkv, beta, rope, n_kv_heads, head_dim):
        qkv = qkv.contiguous()
        batch, n_tokens, _ = qkv.shape
        n_heads = beta.numel()
        ctx.parts = [(n_heads, beta, 0), (n_kv_heads, None, n_heads * head_dim)]
        ctx.rope = [table.to(beta.dtype).contiguous() for table in rope or ()] or [None, None]
        ctx.head_dim, ctx.values = head_dim, (n_heads + n_kv_heads) * head_dim
        ctx.save_for_backward(qkv)
        outs = []
        for heads, scale, begin in ctx.parts:
            outs.append(qkv.new_empty(batch, heads, n_tokens, head_dim))
            _call("unit_heads_forward", qkv.dtype, SplitHeads._sizes(ctx, qkv, heads),
                  qkv[..., begin:], scale, *ctx.rope, outs[-1])
        v = qkv[..., ctx.values:].unflatten(-1, (n_kv_heads, -1)).transpose(1, 2)
        return (*outs, v.contiguous())

    @staticmethod
    def _sizes(ctx, qkv, heads):
        batch, n_tokens, width = qkv.shape
        return (ctypes.c_int64 * 5)(batch, n_tokens, heads, ctx.head_dim, width)

    @staticmethod
    def backward(ctx, *grads):
        qkv, = ctx.saved_tensors
        qkv_grad, beta_grad = torch.empty_like(qkv), torch.zeros_like(ctx.parts[0][1])
        for (heads, scale, begin), grad in zip(ctx.parts, grads):
            _call("unit_heads_backward", qkv.dtype, SplitHeads._sizes(ctx, qkv, heads),
                  grad.contiguous(), qkv[..., begin:], scale, *ctx.rope, qkv_grad[..., begin:],
                  beta_grad if scale is not None else None)
        qkv_grad[..., ctx.values:].copy_(grads[2].transpose(1, 2).flatten(2))
        return qkv_grad, beta_grad, None, None, None


class Gate(Function):
    """silu(gate) * up from their joint product [..., 2 * dim]."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        _call("gate_forward", x.dtype, x, y.numel() // y.shape[-1], y.shape[-1], y)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        x_grad, grad = torch.empty_like(x), grad.contiguous()
        _call("gate_backward", x.dtype, grad, x, grad.numel() // grad.shape[-1], grad.shape[-1],
              x_grad)
        return x_grad


class Softmax(Function):
    """Softmax of scores [..., *rows, n_columns] in place, each row over a range of its columns.

    ranges: int32 [2, *rows], first column and the one past the last, never empty; the result is 0
    elsewhere. bias, if not None, [..., n_columns] is added to each of these rows; it gets no
    gradient."""

    @staticmethod
    def forward(ctx, scores, ranges, bias):
        ctx.mark_dirty(scores)
        _call("softmax_forward", scores.dtype, scores, *Softmax._sizes(scores, ranges), *ranges,
              bias)
        ctx.save_for_backward(scores)
        ctx.ranges = ranges
        return scores

    @staticmethod
    def _sizes(scores, ranges):
        n_rows, n_columns = ranges[0].numel(), scores.shape[-1]
        return scores.numel() // (n_rows * n_columns), n_rows, n_columns

    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensors
        grad, scores_grad = grad.contiguous(), torch.empty_like(y)
        _call("softmax_backward", y.dtype, grad, y, *Softmax._sizes(y, ctx.ranges), *ctx.ranges,
              scores_grad)
        return scores_grad, None, None


SLOT_SEGMENT = 32  # slots.cc's kSegment
SLOT_OBJECTIVES = ("dec", "enc", "sim")


class Slots(Function):
    """lattice.py's memory of slots of unit length, in slots.cc: its results [..., n_tokens, dim].

    q, k [..., n_tokens, n_slots], v [..., n_tokens, dim], rate, keep [..., n_tokens], slots [...,
    n_slots, dim], all of one type."""

    @staticmethod
    def forward(ctx, q, k, v, rate, keep, slots, objective, orthogonal):
        inputs = [x.contiguous() for x in (q, k, v, rate, keep, slots)]
        *heads, n_slots, dim = slots.shape
        n_tokens = q.shape[-2]
        rule = (math.prod(heads), n_tokens, n_slots, dim, SLOT_OBJECTIVES.index(objective), int(orthogonal))
        y = v.new_empty(v.shape)
        kept = v.new_empty(*heads, -(-n_tokens // SLOT_SEGMENT), n_slots, dim)
        _call("slots_forward", y.dtype, *inputs, *rule, y, kept)
        ctx.save_for_backward(*inputs[:5], kept)
        ctx.rule = rule
        return y

    @staticmethod
    def backward(ctx, grad):
        *inputs, kept = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in inputs]
        first = kept.new_empty(*kept.shape[:-3], *kept.shape[-2:])
        _call("slots_backward", grad.dtype, *inputs, kept, grad.contiguous(), *ctx.rule, *grads, first)
        return (*grads, first, None, None)


# Lanes of the widest vector in solve.cc; its sizes must be multiples of this.
SOLVE_LANES = 16


def mesa_solve(q, operands, n_steps, damping):
    """mesa_net.py's conjugate_gradients of key_products, without gradients, in solve.cc."""
    u = torch.empty_like(q)
    n_chunks, chunk_len, dim = q.shape
    _call("mesa_solve", q.dtype, q, *operands, n_chunks, chunk_len, dim, n_steps, damping, u)
    return u


def merge_pairs(keys, values, counts, weight, merge_variance, first, ends, due):
    """closest_pair.py's merge_pairs, in pairs.cc."""
    rows, part_of = np.concatenate((keys, values), -1), np.empty(len(keys), np.int64)
    ends, due = (np.ascontiguousarray(x, np.int64) for x in (ends, due))
    rows_, counts, ends, due, part_of_ = map(torch.from_numpy, (rows, counts, ends, due, part_of))
    _call("merge_pairs", torch.float64, rows_, counts, len(keys), keys.shape[-1], rows.shape[-1], float(weight),
          float(merge_variance), int(first), ends, due, len(due), part_of_)
    keys[:], values[:] = np.split(rows, [keys.shape[-1]], -1)
    return part_of
