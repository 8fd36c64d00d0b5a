"""Decoders of published hybrids, as far as their goldens need; the server's are compared with them.

It is no general loader: a hybrid reads one model.safetensors and the config.json beside it, of
Granite 4.0 H (granitemoehybrid, dense) or of Qwen3.5's text model (qwen3_5_text), with the fields
that occur in tests/golden/published. Its softmax layers use closest pairs if max_rows is given."""

import json
import os
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from ovq.closest_pair import closest_pair_attention
from ovq.config import PairRule
from ovq.gated_delta_net import gated_delta_rule
from ovq.layers import rms_norm, softplus, split_heads, unit
from ovq.mamba2 import selective_scan
from ovq.mixers import full_attention, rope_tables, rotate_half
from ovq.safetensors_io import load_safetensors

CHUNK_LEN = 64  # for closest pairs in layers that were trained without chunks
# The server's rule for published models that have no layer with a window.
RULE = PairRule(pinned_tokens=4, recent_tokens=256)


class Hybrid:
    """Shared part of both families; subclasses add tensor names, a norm and mixers.

    max_rows: N of the softmax layers' closest pairs, or None: every token is kept."""

    def __init__(self, folder, max_rows=None, dtype=torch.float64):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.raw = SimpleNamespace(**json.load(file))
        tensors = load_safetensors(os.path.join(folder, "model.safetensors"))
        self.tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self.max_rows, self.eps = max_rows, self.raw.rms_norm_eps

    def tensor(self, layer, name):
        return self.tensors[f"model.layers.{layer}.{name}"]

    def linear(self, x, layer, name):
        return F.linear(x, self.tensor(layer, f"{name}.weight"))

    def convolved(self, x, layer, name, bias=None):
        """Returns silu of the causal, depthwise convolution of x [batch, n_tokens, channels]."""
        taps = self.tensor(layer, f"{name}.weight")
        padded = F.pad(x, (0, 0, taps.shape[-1] - 1, 0)).transpose(1, 2)
        return F.silu(F.conv1d(padded, taps, bias, groups=x.shape[-1])).transpose(1, 2)

    def attended(self, q, k, v, key_size):
        """Attention of q, k, v [batch, heads, n_tokens, dim]; q includes the score's scale;
        key_size is ClosestPairRows'."""
        q = q.unflatten(1, (k.shape[1], -1))
        if self.max_rows is None:
            out = full_attention(q, k, v)
        else:
            out = closest_pair_attention(q, k, v, CHUNK_LEN, self.max_rows, key_size, RULE)
        return out.flatten(1, 2).transpose(1, 2).flatten(2)

    @torch.no_grad()
    def __call__(self, tokens):
        """Returns logits [batch, n_tokens, vocab] of tokens [batch, n_tokens]."""
        x = F.embedding(tokens, self.tensors["model.embed_tokens.weight"]) * self.embedding_scale
        for layer, kind in enumerate(self.raw.layer_types):
            y = self.norm(x, self.tensor(layer, "input_layernorm.weight"))
            x = x + self.residual_scale * self.mixers[kind](self, y, layer)
            y = self.norm(x, self.tensor(layer, "post_attention_layernorm.weight"))
            x = x + self.residual_scale * self.mlp(y, layer)
        x = self.norm(x, self.tensors["model.norm.weight"])
        head = "model.embed_tokens.weight" if self.raw.tie_word_embeddings else "lm_head.weight"
        return F.linear(x, self.tensors[head]) * self.logit_scale


class Granite(Hybrid):
    """Mamba-2 and attention without positions, norms or biases; four multipliers."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.embedding_scale = self.raw.embedding_multiplier
        self.residual_scale = self.raw.residual_multiplier
        self.logit_scale = 1 / self.raw.logits_scaling

    def norm(self, x, weight):
        return rms_norm(x, self.eps) * weight

    def mlp(self, x, layer):
        gate, up = self.linear(x, layer, "shared_mlp.input_linear").chunk(2, dim=-1)
        return self.linear(F.silu(gate) * up, layer, "shared_mlp.output_linear")

    def attention(self, x, layer):
        raw = self.raw
        q, k, v = (split_heads(self.linear(x, layer, f"self_attn.{name}_proj"), n_heads)
                   for name, n_heads in (("q", raw.num_attention_heads),
                                         ("k", raw.num_key_value_heads),
                                         ("v", raw.num_key_value_heads)))
        out = self.attended(q * raw.attention_multiplier, k, v, key_size=None)
        return self.linear(out, layer, "self_attn.o_proj")

    def mamba(self, x, layer):
        raw, n_heads = self.raw, self.raw.mamba_n_heads
        inner, side = n_heads * raw.mamba_d_head, raw.mamba_n_groups * raw.mamba_d_state
        z, conv, dt = self.linear(x, layer, "mamba.in_proj").split(
            (inner, inner + 2 * side, n_heads), dim=-1)
        conv = self.convolved(conv, layer, "mamba.conv1d", self.tensor(layer, "mamba.conv1d.bias"))
        inputs, b, c = conv.split((inner, side, side), dim=-1)
        dt = softplus(dt + self.tensor(layer, "mamba.dt_bias")).transpose(1, 2)
        inputs = split_heads(inputs, n_heads)
        y = selective_scan(inputs * dt.unsqueeze(-1), split_heads(b, raw.mamba_n_groups),
                           split_heads(c, raw.mamba_n_groups),
                           -self.tensor(layer, "mamba.A_log").exp()[:, None] * dt)
        y = (y + self.tensor(layer, "mamba.D")[:, None, None] * inputs).transpose(1, 2).flatten(2)
        y = self.norm(y * F.silu(z), self.tensor(layer, "mamba.norm.weight"))
        return self.linear(y, layer, "mamba.out_proj")

    mixers = {"mamba": mamba, "attention": attention}


class Qwen(Hybrid):
    """Gated delta nets and gated attention with partial RoPE; norms scale by 1 + w."""

    embedding_scale = residual_scale = logit_scale = 1

    def norm(self, x, weight):
        return rms_norm(x, self.eps) * (1 + weight)

    def mlp(self, x, layer):
        gate, up = (self.linear(x, layer, f"mlp.{name}_proj") for name in ("gate", "up"))
        return self.linear(F.silu(gate) * up, layer, "mlp.down_proj")

    def turned(self, x):
        """Applies RoPE to x [batch, n_tokens, heads, dim]."""
        rope = self.raw.rope_parameters
        dims = int(x.shape[-1] * rope["partial_rotary_factor"])
        tables = rope_tables(x.shape[1], dims, rope["rope_theta"], x.device)
        return torch.cat((rotate_half(x[..., :dims], tables), x[..., dims:]), dim=-1)

    def attention(self, x, layer):
        head_dim = self.raw.head_dim
        q, k, v = (self.linear(x, layer, f"self_attn.{name}_proj").unflatten(
            -1, (-1, head_dim * (2 if name == "q" else 1))) for name in "qkv")
        q, gate = q.chunk(2, dim=-1)
        q, k = (self.turned(self.norm(part, self.tensor(layer, f"self_attn.{name}_norm.weight")))
                for name, part in (("q", q), ("k", k)))
        out = self.attended(*(part.transpose(1, 2) for part in (q * head_dim ** -0.5, k, v)),
                            key_size=head_dim)
        return self.linear(out * gate.flatten(2).sigmoid(), layer, "self_attn.o_proj")

    def delta_net(self, x, layer):
        raw, n_heads = self.raw, self.raw.linear_num_value_heads
        keys = raw.linear_num_key_heads * raw.linear_key_head_dim
        conv = self.convolved(self.linear(x, layer, "linear_attn.in_proj_qkv"), layer,
                              "linear_attn.conv1d")
        q, k, v = conv.split((keys, keys, n_heads * raw.linear_value_head_dim), dim=-1)
        q, k = (unit(split_heads(y, raw.linear_num_key_heads)).repeat_interleave(
            n_heads // raw.linear_num_key_heads, dim=1) for y in (q, k))
        beta = self.linear(x, layer, "linear_attn.in_proj_b").sigmoid().transpose(1, 2)
        step = softplus(self.linear(x, layer, "linear_attn.in_proj_a")
                        + self.tensor(layer, "linear_attn.dt_bias"))
        log_alpha = (-self.tensor(layer, "linear_attn.A_log").exp() * step).transpose(1, 2)
        y, _ = gated_delta_rule(q * raw.linear_key_head_dim ** -0.5, k, split_heads(v, n_heads), beta,
                             log_alpha)
        y = rms_norm(y, self.eps) * self.tensor(layer, "linear_attn.norm.weight")
        y = y.transpose(1, 2).flatten(2) * F.silu(self.linear(x, layer, "linear_attn.in_proj_z"))
        return self.linear(y, layer, "linear_attn.out_proj")

    mixers = {"linear_attention": delta_net, "full_attention": attention}
