"""The decoder of the native format, composed from a Config."""

import dataclasses
import json
import os
import re

import torch
from torch import nn
import torch.nn.functional as F

from ovq import fused, kvm, mixers
from ovq.checks import one_of
from ovq.closest_pair import closest_pair_attention
from ovq.config import (ConfigError, DICTIONARY_LAYER_TYPES, check_max_centroids, config_to_dict, load_config,
                        read_json_object, share_of)
from ovq.dictionary import ABLATIONS, n_centroids_at, ovq_attention
from ovq.gated_delta_net import GatedDeltaNet
from ovq.lattice import Lattice
from ovq.layers import Projection, RmsNorm, joint_product, shift_tokens
from ovq.mamba2 import Mamba2
from ovq.memories import MEMORIES, bounded_attention
from ovq.mesa_net import MesaNet
from ovq.safetensors_io import load_safetensors, save_safetensors
from ovq.transformer_vq import TransformerVq

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # says which of several files has which tensor
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


# Layer types with a module of their own, constructed from the config and its section.
MIXERS = {"gated_delta_net": GatedDeltaNet, "mamba2": Mamba2, "mesa_net": MesaNet,
          "lattice": Lattice, "transformer_vq": TransformerVq}
# Ablations of one of these types, in its module's words; all others are of ovq_attention (dictionary.ABLATIONS).
LAYER_ABLATIONS = {"whole_update": "lattice", "exact_keys": "transformer_vq"}


class Attention(nn.Module):
    """Projections around one of the mixers; its options for training are OvqModel's."""

    def __init__(self, config, layer_type, shares, ablation, recompute_chunks):
        super().__init__()
        self.config, self.layer_type = config, layer_type
        self.shares = shares  # of max_centroids: one, or one for each key/value head
        self.ablation, self.recompute_chunks = ablation, recompute_chunks
        self.memory = None  # see OvqModel.read_through
        n_heads, n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        d_model, std = config.hidden_size, config.hidden_size ** -0.5
        out_std = (n_heads * config.value_head_dim * 2 * config.num_hidden_layers) ** -0.5
        self.q_proj = Projection(d_model, n_heads * config.head_dim, std)
        self.k_proj = Projection(d_model, n_kv_heads * config.head_dim, std)
        self.v_proj = Projection(d_model, n_kv_heads * config.value_head_dim, std)
        self.o_proj = Projection(n_heads * config.value_head_dim, d_model, out_std)
        self.beta = nn.Parameter(torch.full((n_heads,), 8.0))
        # starts at no shift, so that weights without it can be trained further
        if config.token_shift:
            for name, projection in (("q", self.q_proj), ("k", self.k_proj), ("v", self.v_proj)):
                self.register_parameter(f"{name}_shift",
                                        nn.Parameter(torch.zeros(len(projection.weight))))
        if layer_type == "vq_attention":
            self.codebook = nn.Parameter(mixers.unit_norm(
                torch.randn(n_kv_heads, config.codebook_size, config.head_dim)))
        if layer_type == "kvm_attention":
            # the table's key norm starts at the window's norm, 1, and the gates start open
            self.ln_s_k = nn.LayerNorm(config.head_dim)
            nn.init.constant_(self.ln_s_k.weight, config.head_dim ** -0.5)
            if config.kvm.has_gates:
                self.key_weighting = Projection(d_model, n_heads, 0.0)
            if config.kvm.use_head_temps:
                self.front_head_temp = nn.Parameter(torch.ones(n_heads))
                self.state_head_temp = nn.Parameter(torch.ones(n_heads))

    def _heads(self, x, rope, first=0):
        """Returns q, k and v, each [batch, heads, n_tokens, dim], of tokens whose first is at position `first`.

        Queries have unit norm times beta, keys unit norm; sliding layers apply RoPE, and in the others
        queries grow with the position."""
        head_dim, n_kv_heads = self.config.head_dim, self.config.num_key_value_heads
        rope = rope if self.layer_type == "sliding_attention" else None
        qkv = joint_product(x, self.q_proj, self.k_proj, self.v_proj)
        if self.config.token_shift:
            qkv = shift_tokens(qkv, torch.cat((self.q_shift, self.k_shift, self.v_shift)))
        grows = self.config.attn_scale and self.layer_type != "sliding_attention"
        if fused.usable(x, x.dtype, self.beta) and not grows:
            return fused.SplitHeads.apply(qkv, self.beta, rope, n_kv_heads, head_dim)
        v_dim = self.config.value_head_dim
        sizes = (len(self.beta) * head_dim, n_kv_heads * head_dim, n_kv_heads * v_dim)
        q, k, v = (part.unflatten(-1, (-1, dim)) for part, dim in zip(
            qkv.split(sizes, dim=-1), (head_dim, head_dim, v_dim)))
        # heads become the second dimension last: these operations are much slower on strided memory
        scale = self.beta[:, None]
        if grows:
            positions = torch.arange(first, first + x.shape[1], device=x.device)
            growth = mixers.query_growth(positions, self.config.attn_scale, self.config.floor_scale)
            scale = scale * growth[:, None, None].to(scale.dtype)
        q = mixers.unit_norm(mixers.wide(q), scale)
        k = mixers.unit_norm(mixers.wide(k))
        if rope:
            q, k = mixers.rotate_half(q, rope), mixers.rotate_half(k, rope)
        return tuple(part.to(x.dtype).transpose(1, 2) for part in (q, k, v))

    def keys(self, x):
        """Returns k before its norm, [batch, n_tokens, channels]."""
        keys = self.k_proj(x)
        return shift_tokens(keys, self.k_shift) if self.config.token_shift else keys

    def keys_to_code(self, x):
        """Returns all keys [n_kv_heads, n_keys, head_dim] as a codebook replaces them."""
        every = self.keys(x).flatten(0, 1).unflatten(-1, (-1, self.config.head_dim))
        return mixers.unit_norm(every.float()).transpose(0, 1)

    def _mix_kvm(self, q, k, v, x, max_rows):
        settings, gates = self.config.kvm, None
        if settings.has_gates:
            gates = kvm.token_gates(mixers.wide(self.key_weighting(x))).transpose(1, 2)
        temps = (self.front_head_temp, self.state_head_temp) if settings.use_head_temps else ()
        weights = kvm.Weights(self.ln_s_k.weight, self.ln_s_k.bias, *temps)
        return kvm.kvm_attention(q, k, v, gates, weights, settings, max_rows)

    def _mix(self, q, k, v, x, max_centroids):
        if self.layer_type == "kvm_attention":
            return self._mix_kvm(q, k, v, x, max_centroids)
        if max_centroids is None:
            max_centroids = self.config.max_centroids
        sizes = [share_of(max_centroids, share) for share in self.shares]
        if len(sizes) == 1:
            return self._mix_heads(q, k, v, self.beta, *sizes)
        heads = zip(*(x.split(1, 1) for x in (q, k, v)),
                    self.beta.split(self.config.group_size), sizes)
        return torch.cat([self._mix_heads(*head) for head in heads], dim=1)

    def variance_scale(self, beta):
        """Returns dictionary.py's variance_scale for the query heads of beta [n_heads], or None.

        The query heads of a group share rows, and these have one bias: the mean beta^2 counts."""
        if not self.config.variance:
            return None
        squares = beta.detach().square().unflatten(0, (-1, self.config.group_size)).mean(-1)
        return self.config.variance / (2 * self.config.head_dim) * squares

    def _mix_heads(self, q, k, v, beta, max_centroids):
        variance_scale = self.variance_scale(beta)
        if self.memory in MEMORIES:
            max_rows = n_centroids_at(k.shape[2], max_centroids)
            return bounded_attention(q, k, v, self.config.chunk_size, max_rows, self.memory,
                                     variance_scale, self.config.pair_rule)
        if self.layer_type == "sliding_attention":
            return mixers.sliding_attention(q, k, v, self.config.sliding_window)
        if self.layer_type == "full_attention" and self.memory is None:
            return mixers.full_attention(q, k, v)
        if self.layer_type == "vq_attention":
            return mixers.vq_attention(q, k, v, self.codebook)
        if self.config.update == "closest-pair" and self.memory is None:
            return closest_pair_attention(q, k, v, self.config.chunk_size, max_centroids,
                                          rule=self.config.pair_rule,
                                          variance_scale=variance_scale)
        if self.config.update == "keydiff" and self.memory is None:
            return bounded_attention(q, k, v, self.config.chunk_size, max_centroids, "keydiff",
                                     rule=self.config.pair_rule)
        return ovq_attention(q, k, v, self.config.chunk_size, max_centroids, self.ablation,
                             self.recompute_chunks, self.config.ovq_rules, beta, variance_scale)

    def forward(self, x, rope, max_centroids):
        q, k, v = self._heads(x, rope)
        # query head h reads key/value head h // group
        q = q.unflatten(1, (-1, self.config.group_size))
        out = self._mix(q, k, v, x, max_centroids).flatten(1, 2)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config, d_ff):
        super().__init__()
        d_model = config.hidden_size
        self.gate_proj = Projection(d_model, d_ff, d_model ** -0.5)
        self.up_proj = Projection(d_model, d_ff, d_model ** -0.5)
        self.down_proj = Projection(d_ff, d_model, (d_ff * 2 * config.num_hidden_layers) ** -0.5)

    def forward(self, x):
        gate_up = joint_product(x, self.gate_proj, self.up_proj)
        if fused.usable(x, x.dtype):
            return self.down_proj(fused.Gate.apply(gate_up))
        gate, up = mixers.wide(gate_up).chunk(2, dim=-1)
        return self.down_proj((F.silu(gate) * up).to(x.dtype))


class Layer(nn.Module):
    """h = x + mixer(norm(x)); out = h + mlp(norm(h)), on a residual in the weights' dtype.

    If the layer has no MLP, out = h."""

    def __init__(self, config, i, *training_options):
        super().__init__()
        d_ff = config.intermediate_sizes[i]
        norm = config.hidden_size, config.rms_norm_eps, config.norm_bias
        self.input_layernorm = RmsNorm(*norm)
        self.self_attn = self.make_mixer(config, i, *training_options)
        self.has_mlp = d_ff > 0
        if self.has_mlp:
            self.post_attention_layernorm = RmsNorm(*norm)
            self.mlp = Mlp(config, d_ff)

    @staticmethod
    def make_mixer(config, i, *training_options):
        kind = config.layer_types[i]
        if kind in MIXERS:
            ablation = training_options[:1] if kind in LAYER_ABLATIONS.values() else ()
            return MIXERS[kind](config, config.sections[kind], *ablation)
        return Attention(config, kind, config.shares_of(i), *training_options)

    def forward(self, x, rope, max_centroids, compute_dtype):
        y = self.input_layernorm(x, compute_dtype)
        if isinstance(self.self_attn, Attention):
            h = x + self.self_attn(y, rope, max_centroids)
        else:
            h = x + self.self_attn(y)
        return self.add_mlp(h, compute_dtype)

    def add_mlp(self, h, compute_dtype):
        if not self.has_mlp:
            return h
        return h + self.mlp(self.post_attention_layernorm(h, compute_dtype))


class PositionTable(nn.Module):
    """Adds sines and cosines of the position, times a weight, to the embedding."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Backbone(nn.Module):
    """The modules under the tensor prefix `model.`."""

    def __init__(self, config, layer_class, *training_options):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=config.hidden_size ** -0.5)
        if config.pe_abs:
            self.embed_positions = PositionTable()
        self.layers = nn.ModuleList(layer_class(config, i, *training_options)
                                    for i in range(config.num_hidden_layers))
        if config.final_norm:
            self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, config.norm_bias)


class Head(nn.Module):
    """The modules under `lm_head.`; no weight of its own if it is tied to the embedding's."""

    def __init__(self, config):
        super().__init__()
        if not config.tie_word_embeddings:
            self.weight = nn.Parameter(torch.randn(config.vocab_size, config.hidden_size)
                                       * config.hidden_size ** -0.5)
        if config.lm_head_bias:
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class OvqModel(nn.Module):
    """The decoder; its state_dict has exactly the tensor names of the native format.

    ablation, recompute_chunks: see ovq_attention. config.json cannot set them: a served model has
    no ablation."""

    layer_class = Layer

    def __init__(self, config, compute_dtype=torch.float32, ablation="none",
                 recompute_chunks=False):
        super().__init__()
        one_of("ablation", ablation, (*ABLATIONS, *LAYER_ABLATIONS))
        ablated = LAYER_ABLATIONS.get(ablation, "ovq_attention")
        if ablation != "none" and ablated not in config.served_types:  # no other rule of dictionaries has ablations
            raise ConfigError(f"ablation {ablation}: expected a {ablated} layer, got {', '.join(config.served_types)}")
        self.config, self.compute_dtype = config, compute_dtype
        self.model = Backbone(config, self.layer_class, ablation, recompute_chunks)
        self.lm_head = Head(config)

    def _embed(self, tokens, first=0):
        x = self.model.embed_tokens(tokens)
        if not self.config.pe_abs:
            return x
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        table = mixers.position_table(positions, self.config.hidden_size, self.config.pe_lam)
        return x + self.model.embed_positions.scale * table.to(x.dtype)

    def _normed(self, x):
        return self.model.norm(x, self.compute_dtype) if self.config.final_norm else x.to(self.compute_dtype)

    def _logits(self, x, places=None):
        if places is not None:
            x = x.flatten(0, 1).index_select(0, places)
        tied = self.config.tie_word_embeddings
        weight = self.model.embed_tokens.weight if tied else self.lm_head.weight
        logits = mixers.wide(F.linear(x, weight.to(x.dtype)))
        if self.config.lm_head_bias:
            logits = logits + self.lm_head.bias
        return logits if self.config.logit_scale == 1 else logits * self.config.logit_scale

    def forward(self, tokens, max_centroids=None, places=None):
        """Returns logits [batch, n_tokens, vocab], at least float32, of tokens [batch, n_tokens].

        max_centroids: N of ovq layers and the cap on kvm layers' rows; None: the config's. places: indices
        [n_places] into the flattened tokens, for logits [n_places, vocab] of these alone."""
        if max_centroids is not None:
            check_max_centroids(max_centroids, self.config.chunk_size)
        rope = None
        if "sliding_attention" in self.config.layer_types:
            rope = mixers.rope_tables(tokens.shape[1], self.config.head_dim,
                                      self.config.rope_theta, tokens.device)
        x = self._embed(tokens)
        for layer in self.model.layers:
            x = layer(x, rope, max_centroids, self.compute_dtype)
        return self._logits(self._normed(x), places)

    def read_through(self, memory):
        """Makes full and OVQ layers use another memory from now on: a baseline for evaluation.

        memory: one of memories.py, with as many rows as max_centroids leaves live at a context's
        end, or "dictionary", OVQ's own; full attention was not trained with it."""
        if memory not in (*MEMORIES, "dictionary"):
            raise ValueError(f"memory: {memory!r} is not one of {', '.join(MEMORIES)}, dictionary")
        readers = [layer.self_attn for layer, kind in zip(self.model.layers,
                                                          self.config.layer_types)
                   if kind in DICTIONARY_LAYER_TYPES]
        if not readers:
            raise ValueError(f"memory: {memory!r} needs full_attention or ovq_attention layers, "
                             "but the model has none")
        for attention in readers:
            attention.memory = memory

    def _codebook_layers(self, *kinds):
        return [layer for layer, kind in zip(self.model.layers, self.config.layer_types) if kind in kinds]

    @torch.no_grad()
    def normalize_codebooks(self):
        """Normalizes codes of vq_attention to unit norm, which keys have (section 8.1)."""
        for layer in self._codebook_layers("vq_attention"):
            layer.self_attn.codebook.copy_(mixers.unit_norm(layer.self_attn.codebook))

    @torch.no_grad()
    def sample_codebooks(self, tokens):
        """Initializes codes with random keys of tokens [batch, n_tokens], layer after layer."""
        for layer in self._codebook_layers("vq_attention", "transformer_vq"):
            keys = []
            hook = layer.self_attn.register_forward_pre_hook(
                lambda module, inputs, keys=keys: keys.append(module.keys_to_code(inputs[0])))
            self(tokens)
            hook.remove()
            codebook = layer.self_attn.codebook
            n_codes, n_keys = codebook.shape[1], keys[0].shape[1]
            if n_keys < n_codes:
                raise ValueError(f"codebook_size: {n_codes} codes, but a batch has only "
                                 f"{n_keys} keys to start them from")
            codebook.copy_(keys[0][:, torch.randperm(n_keys)[:n_codes]])


def load_model(folder, compute_dtype=torch.float32, ablation="none", rule=None):
    """Reads a native model folder; weights become float32 whatever the file's dtype. rule: whose
    shares, if not those of the config's own."""
    config = load_config(folder)
    model = OvqModel(config.read_by(rule) if rule else config, compute_dtype, ablation)
    path, shards, tensors = os.path.join(folder, WEIGHTS), [WEIGHTS], {}
    if not os.path.exists(path):
        indexed = os.path.join(folder, INDEX)
        if os.path.exists(indexed):
            path, places = indexed, read_json_object(indexed).get("weight_map")
            if not isinstance(places, dict):
                raise ValueError(f"{path}: weight_map: {places!r} does not say which file has which tensor")
            shards = sorted(set(places.values()))
    for shard in shards:
        tensors.update((name, tensor.float())
                       for name, tensor in load_safetensors(os.path.join(folder, shard)).items())
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in expected.items():
        if name not in tensors:
            raise ValueError(f"{path}: {name} is missing")
        if list(tensors[name].shape) != shape:
            raise ValueError(f"{path}: {name} has shape {list(tensors[name].shape)}, "
                             f"config.json asks for {shape}")
    for name in tensors:
        if name not in expected:
            raise ValueError(f"{path}: {name} belongs to no part of the model")
    model.load_state_dict(tensors)
    return model.eval()


def write_json(path, value):
    """Writes a JSON file, which appears complete or not at all."""
    with open(path + ".partial", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
    os.replace(path + ".partial", path)


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _shards(tensors, most_bytes):
    """Splits {name: tensor}, in the order of names, into as few parts of at most most_bytes; a larger tensor is a part of
    its own."""
    parts, size = [{}], 0
    for name in sorted(tensors):
        if parts[-1] and size + _bytes(tensors[name]) > most_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensors[name]
        size += _bytes(tensors[name])
    return parts


def save_model(folder, config, tensors, dtype="float32", shard_bytes=None):
    """Writes a native model folder: a Config, and {name: tensor}, each as dtype, a name in DTYPES. Returns the weights' bytes.

    shard_bytes: the most bytes of tensors in a file, with an index beside the files; None: one file."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
    os.makedirs(folder, exist_ok=True)
    tensors = {name: tensor.to(DTYPES[dtype]) for name, tensor in tensors.items()}
    n_bytes = sum(map(_bytes, tensors.values()))
    parts = [tensors] if shard_bytes is None else _shards(tensors, shard_bytes)
    names = [WEIGHTS] if shard_bytes is None else [
        f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    for name, part in zip(names, parts):
        save_safetensors(os.path.join(folder, name), part)
    if shard_bytes is not None:
        places = {tensor: name for name, part in zip(names, parts) for tensor in part}
        write_json(os.path.join(folder, INDEX), {"metadata": {"total_size": n_bytes}, "weight_map": places})
        names.append(INDEX)
    for name in os.listdir(folder):  # whoever loads it must not find the files of a model before
        if re.fullmatch(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?", name) and name not in names:
            os.remove(os.path.join(folder, name))
    write_json(os.path.join(folder, "config.json"),
               config_to_dict(dataclasses.replace(config, torch_dtype=dtype)))
    return n_bytes
