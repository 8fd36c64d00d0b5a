"""The decoder of the KVM paper's published code, as far as its fixtures need it, to verify kvm.py.

It is no general loader: it reads one model.safetensors and the config.json beside it, and does not
support block lambdas, skip connections, soft cap, linear value residuals or attention without token
shift."""

import json
import os

import torch
import torch.nn.functional as F

from ovq import kvm
from ovq.config import OvqRules, kvm_from_dict
from ovq.dictionary import ovq_attention
from ovq.mixers import block_sliding_attention, full_attention, sliding_attention
from ovq.safetensors_io import load_safetensors

_KVM_FLAGS = ("use_merge_gate_keys", "use_merge_gate_values", "use_head_temps", "use_vlens",
              "apply_merge_gate_to_initial_state", "apply_merge_gate_to_appends")
_KVM_FIELDS = ("chunk_len", "n_bswa_chunks", "sink_len", "state_budget_mode",
               "state_growth_factor", "state_growth_exponent", "state_round_down",
               "state_min_len", "state_saturation_n", "n_max_d_chunks")
_OVQ_FLAGS = {"normalize_centroids": "ovq_normalize_centroids",
              "min_state_size": "ovq_use_min_state_size",
              "counts_for_rates_only": "ovq_use_counts_for_lr_only",
              "delta_rule": "ovq_use_delta_rule"}
_MIXERS = ("gptalpha", "kvm", "ovq", "swa")
_KNOWN = {"d_head": (None,), "d_qk_head": (None,), "d_v_head": (None,), "logit_softcap": (0.0,),
          "use_block_lambdas": (0,), "use_skip_connections": (0,), "use_tokenshift_att": (1,),
          "use_tokenshift_ffn": (1,), "use_value_residual": (1,), "alt_share_v0": (0,),
          **{f"{mixer}_token_shift_mode": ("rwkv",) for mixer in _MIXERS},
          **{f"{mixer}_value_residual_mode": ("rwkv", "rwkv_post_tokenshift")
             for mixer in _MIXERS}}


def _shifted(x, share, first):
    """Moves x [batch, n_tokens, dim] by share [dim] towards the previous token.

    first [batch, 1, dim]: the input before token 0."""
    return x + share * (torch.cat((first, x[:, :-1]), dim=1) - x)


def _rope(x, theta, partial_dim, rounding):
    """RoPE on pairs (2i, 2i + 1) of the first partial_dim channels, by minus the angle.

    Frequencies, in float32, range from 1 to 1 / theta, both included. rounding: the type to which
    cosines and sines are rounded."""
    n_pairs, n_tokens = partial_dim // 2, x.shape[2]
    frequencies = (1 / theta) ** torch.linspace(0, 1, n_pairs)
    angles = torch.arange(n_tokens, dtype=torch.float32)[:, None] * frequencies
    cos, sin = (wave.to(rounding).to(x.dtype) for wave in (angles.cos(), angles.sin()))
    even, odd = x[..., :partial_dim:2], x[..., 1:partial_dim:2]
    turned = torch.stack((even * cos + odd * sin, odd * cos - even * sin), dim=-1)
    return torch.cat((turned.flatten(-2), x[..., partial_dim:]), dim=-1)


class Backbone:
    """A model folder as a function from tokens to logits, in float32.

    rounded: round cosines, sines and the values of kvm's slots to bfloat16, as the published code
    does."""

    def __init__(self, folder, rounded=False):
        self.rounded = rounded
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.raw = json.load(file)
        for name, known in _KNOWN.items():
            if self.raw[name] not in known:
                raise ValueError(f"{folder}: {name}: {self.raw[name]!r} is not "
                                 f"{' or '.join(map(repr, known))}, all that this reference knows")
        self.tensors = load_safetensors(os.path.join(folder, "model.safetensors"))
        self.n_heads = self.raw["num_attention_heads"]
        self.head_dim = self.raw["hidden_size"] // self.n_heads

    def _norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"],
                            self.tensors[f"{name}.bias"], 1e-5)

    def _linear(self, x, name):
        return F.linear(x, self.tensors[f"{name}.weight"])

    def _is_alternate(self, layer):
        every = self.raw["alt_layer_every"]
        return every > 0 and layer % every == 0

    def _first_values(self, x0, layer):
        """Returns the values that a layer's values are mixed with: those of the first layer of its
        class, from x0."""
        first = 1 if self.raw["alt_layer_every"] > 0 and not self._is_alternate(layer) else 0
        x = self._norm(x0, f"transformer.h.{first}.ln_attn")
        return self._linear(x, f"transformer.h.{first}.attn.c_v")

    def _mixer(self, layer):
        return self.raw["alt_token_mixer" if self._is_alternate(layer) else "token_mixer"]

    def _mixed(self, v, x, first_values, prefix):
        """Moves v towards first_values by a gate computed from x."""
        gate = self._linear(self._linear(x, f"{prefix}.v_gate1"), f"{prefix}.v_gate2")
        return v + (first_values - v) * torch.sigmoid(self.tensors[f"{prefix}.v_gate0"] + gate)

    def _heads(self, x, first_values, layer):
        """Returns q, k and v, each [batch, heads, n_tokens, dim], before any norm."""
        prefix = f"transformer.h.{layer}.attn"
        q, k, v = (self._linear(x, f"{prefix}.c_{name}") for name in "qkv")
        fields = self._mixer(layer).removesuffix("_bswa")
        gates_last = self.raw[f"{fields}_value_residual_mode"] == "rwkv_post_tokenshift"
        if not gates_last:
            v = self._mixed(v, x, first_values, prefix)
        shares = {name: self.tensors[f"{prefix}.x_{name}"] for name in "qkv"}
        q, k, v = (_shifted(part, shares[name], part[:, :1]) for name, part in
                   zip("qkv", (q, k, v)))
        if gates_last:
            v = self._mixed(v, _shifted(x, shares["v"], x[:, :1]), first_values, prefix)
        return [part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in (q, k, v)]

    def _ovq(self, q, k, v, prefix):
        q, k = (part / (part.norm(dim=-1, keepdim=True) + 1e-5) for part in (q, k))
        scales = self.tensors[f"{prefix}.beta"] * self.head_dim ** 0.5
        rules = OvqRules(**{name: bool(self.raw[field]) for name, field in _OVQ_FLAGS.items()})
        return ovq_attention((q * scales[:, None, None]).unsqueeze(2), k, v,
                             self.raw["ovq_chunk_size"], self.raw["ovq_max_centroids"],
                             rules=rules, key_scales=scales)

    def _kvm(self, q, k, v, x, prefix):
        raw = self.raw
        section = {name: raw[name] for name in _KVM_FIELDS}
        section.update({name: bool(raw[f"kvm_{name}"]) for name in _KVM_FLAGS})
        section["masked_dims"] = raw["rope_partial_dim"]
        section["values_round_to_bfloat16"] = self.rounded
        settings, gates, temps = kvm_from_dict(section, self.head_dim), None, ()
        if settings.has_gates:
            gates = kvm.token_gates(self._linear(x, f"{prefix}.key_weighting")).transpose(1, 2)
        if settings.use_head_temps:
            temps = [self.tensors[f"{prefix}.{part}_head_temp"] for part in ("front", "state")]
        weights = kvm.Weights(self.tensors[f"{prefix}.ln_s_k.weight"],
                              self.tensors[f"{prefix}.ln_s_k.bias"], *temps)
        return kvm.kvm_attention(q, k, v, gates, weights, settings)

    def _attention(self, x, first_values, layer):
        prefix = f"transformer.h.{layer}.attn"
        side = "alt_" if self._is_alternate(layer) else ""
        mixer = self._mixer(layer)
        q, k, v = self._heads(x, first_values, layer)
        if mixer == "ovq":
            out = self._ovq(q, k, v, prefix)
        else:
            theta, partial_dim = (self.raw[f"{side}rope_{name}"] for name in
                                  ("theta", "partial_dim"))
            rounding = torch.bfloat16 if self.rounded else torch.float32
            q, k = (_rope(self._norm(part, f"{prefix}.ln_{name}"), theta, partial_dim, rounding)
                    for name, part in zip("qk", (q, k)))
            q = (q * self.head_dim ** -0.5).unsqueeze(2)
            if mixer == "kvm":
                out = self._kvm(q, k, v, x, prefix)
            elif mixer == "swa":
                window_len = self.raw["swa_window_size"]
                out = sliding_attention(q, k, v, window_len if window_len > 0
                                        else self.raw["chunk_len"])
            elif mixer == "gptalpha_bswa":
                out = block_sliding_attention(q, k, v, self.raw["chunk_len"],
                                              self.raw["n_bswa_chunks"], self.raw["sink_len"])
            else:
                out = full_attention(q, k, v)
        return self._linear(out.flatten(1, 2).transpose(1, 2).flatten(2), f"{prefix}.c_proj")

    def _mlp(self, z, layer):
        prefix = f"transformer.h.{layer}.mlp"
        z = _shifted(z, self.tensors[f"{prefix}.x_k"], torch.zeros_like(z[:, :1]))
        return self._linear(self._linear(z, f"{prefix}.c_fc").relu().square(), f"{prefix}.c_proj")

    @torch.no_grad()
    def __call__(self, tokens):
        """Returns logits [batch, n_tokens, vocab] of tokens [batch, n_tokens]."""
        x0 = self._norm(F.embedding(tokens, self.tensors["transformer.wte.weight"]),
                        "transformer.ln_emb")
        x, scale = x0, self.raw["residual_scale"] or 1.0
        for layer in range(self.raw["num_hidden_layers"]):
            prefix = f"transformer.h.{layer}"
            x = x + scale * self._attention(self._norm(x, f"{prefix}.ln_attn"),
                                            self._first_values(x0, layer), layer)
            x = x + scale * self._mlp(self._norm(x, f"{prefix}.ln_mlp"), layer)
        return self._linear(self._norm(x, "transformer.ln_head"), "lm_head")
