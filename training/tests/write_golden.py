"""Writes golden models for features that no public code's logits cover: OVQ's other rules and
shares, block windows.

    /usr/bin/python3 training/tests/write_golden.py FOLDER [NAME...]

FOLDER is tests/golden; with names, only these models are written. Every parameter is random; logits are this reference's in float64, rounded
to float32. A seed is taken only if no choice of a centroid, a pair or an evicted token is closer
than MARGIN.
"""

import json
import os
import sys
from unittest import mock

import numpy as np
import torch

import support  # noqa: F401, the import path
from ovq import closest_pair, dictionary, memories
from ovq.backbone import Backbone
from ovq.model import load_model
from ovq.safetensors_io import save_safetensors

MARGIN = 1e-4  # for dot products of unit vectors, which float32 computes within 1e-6
LENGTHS = (40, 150)
NATIVE = {"model_type": "ovq_hybrid", "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 3,
          "num_attention_heads": 2, "head_dim": 16, "value_head_dim": 12, "intermediate_size": 48,
          "sliding_window": 12, "layer_types": ["sliding_attention", "ovq_attention",
                                                "ovq_attention"]}
RULES = {"ovq-normalize": {"normalize_centroids": True}, "ovq-min-state": {"min_state_size": True},
         "ovq-rates-only": {"counts_for_rates_only": True}, "ovq-delta": {"delta_rule": True},
         "ovq-normalize-delta": {"normalize_centroids": True, "delta_rule": True},
         "ovq-shares": {"shares": [1.5, 0.5]}, "ovq-head-shares": {"shares": [1.5, [0.25, 0.75]]},
         "closest-pair-shares": {"shares": [[0.5, 1], 1.25], "update": "closest-pair"},
         "keydiff-shares": {"shares": [[0.5, 1], 1.25], "update": "keydiff"},
         "keydiff-spared": {"shares": [1.25, [0.5, 1]], "update": "keydiff", "pinned_tokens": 3, "recent_tokens": 9},
         "ovq-variance": {"variance": 1.5, "delta_rule": True},
         "closest-pair-variance": {"variance": 1, "shares": [[0.5, 1], 1.25], "update": "closest-pair"},
         "closest-pair-merge-variance": {"merge_variance": 1.5, "value_weight": 0.25, "shares": [[0.5, 1], 1.25],
                                         "update": "closest-pair"},
         "query-growth": {}}
# Fields of a model besides its rule.
FIELDS = {name: {"num_attention_heads": 4, "num_key_value_heads": 2}
          for name in ("closest-pair-variance", "closest-pair-merge-variance")}
FIELDS["query-growth"] = {"attn_scale": 0.4, "floor_scale": 24, "num_hidden_layers": 4,
                          "layer_types": ["sliding_attention", "full_attention", "ovq_attention", "ovq_attention"]}
PAPER = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4,
         "ffn_expansion": 2.0, "residual_scale": 0.5, "rope_partial_dim": 8,
         "alt_rope_partial_dim": 16}
SWA = {"alt_token_mixer": "swa", "alt_layer_every": 2, "swa_window_size": 12}
PAPER_MODELS = {
    "ovq-flags": {**SWA, "token_mixer": "ovq", "ovq_chunk_size": 16, "ovq_max_centroids": 24,
                  "ovq_normalize_centroids": 1, "ovq_use_min_state_size": 1,
                  "ovq_use_counts_for_lr_only": 1, "ovq_use_delta_rule": 1},
    "bswa-sinks": {"token_mixer": "gptalpha_bswa", "alt_layer_every": -1, "num_hidden_layers": 2,
                   "chunk_len": 12, "n_bswa_chunks": 2, "sink_len": 3},
    "post-tokenshift": {**SWA, "token_mixer": "gptalpha_bswa", "chunk_len": 20, "n_bswa_chunks": 3,
                        "sink_len": 0, "gptalpha_value_residual_mode": "rwkv_post_tokenshift"},
}


def random_native(config):
    d_model, heads, ffn = (config[name] for name in ("hidden_size", "num_attention_heads",
                                                     "intermediate_size"))
    kv_heads = config.get("num_key_value_heads", heads)
    key_dim, value_dim = config["head_dim"], config["value_head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], d_model),
              "lm_head.weight": (config["vocab_size"], d_model), "model.norm.weight": (d_model,)}
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
                "input_layernorm.weight": (d_model,),
                "self_attn.q_proj.weight": (heads * key_dim, d_model),
                "self_attn.k_proj.weight": (kv_heads * key_dim, d_model),
                "self_attn.v_proj.weight": (kv_heads * value_dim, d_model),
                "self_attn.o_proj.weight": (d_model, heads * value_dim), "self_attn.beta": (heads,),
                "post_attention_layernorm.weight": (d_model,),
                "mlp.gate_proj.weight": (ffn, d_model), "mlp.up_proj.weight": (ffn, d_model),
                "mlp.down_proj.weight": (d_model, ffn)}.items():
            shapes[f"model.layers.{i}.{name}"] = shape
    return {name: random_tensor(name, shape) for name, shape in shapes.items()}


def random_tensor(name, shape):
    if name.endswith("beta"):
        return 6 + torch.randn(shape)
    if len(shape) == 2:
        return torch.randn(shape) * shape[1] ** -0.5
    if name.endswith(("norm.weight", "ln_attn.weight", "ln_mlp.weight", "ln_q.weight",
                      "ln_k.weight", "ln_emb.weight", "ln_head.weight")):
        return 1 + 0.2 * torch.randn(shape)
    if ".x_" in name:
        return torch.rand(shape)
    return 0.2 * torch.randn(shape)


def random_paper(config):
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    ffn = int(config["ffn_expansion"] * d_model) // 32 * 32
    shapes = {"wte.weight": (config["vocab_size"], d_model), "ln_emb.weight": (d_model,),
              "ln_emb.bias": (d_model,), "ln_head.weight": (d_model,), "ln_head.bias": (d_model,)}
    for i in range(config["num_hidden_layers"]):
        mixer = config["alt_token_mixer" if config["alt_layer_every"] > 0
                       and i % config["alt_layer_every"] == 0 else "token_mixer"]
        of_mixer = {"beta": (heads,)} if mixer == "ovq" else {
            f"ln_{name}.{part}": (d_model // heads,)
            for name in "qk" for part in ("weight", "bias")}
        for name, shape in {
                "ln_attn.weight": (d_model,), "ln_attn.bias": (d_model,),
                "ln_mlp.weight": (d_model,), "ln_mlp.bias": (d_model,),
                **{f"attn.c_{name}.weight": (d_model, d_model) for name in ("q", "k", "v", "proj")},
                **{f"attn.x_{name}": (d_model,) for name in "qkv"},
                "attn.v_gate0": (1, 1, d_model), "attn.v_gate1.weight": (32, d_model),
                "attn.v_gate2.weight": (d_model, 32), "mlp.x_k": (1, 1, d_model),
                "mlp.c_fc.weight": (ffn, d_model), "mlp.c_proj.weight": (d_model, ffn),
                **{f"attn.{name}": shape for name, shape in of_mixer.items()}}.items():
            shapes[f"h.{i}.{name}"] = shape
    tensors = {f"transformer.{name}": random_tensor(name, shape) for name, shape in shapes.items()}
    tensors["lm_head.weight"] = random_tensor("lm_head", (config["vocab_size"], d_model))
    return tensors


def smallest_margin(run):
    """Returns the result of run(), and the margin of its closest choice."""
    margins, assign = [1.0], dictionary.assign_chunk
    merge_closest, drop = closest_pair.Candidates.merge_closest, memories._SHRINK["keydiff"]

    def watched(keys, centroids, n_new, ablation="none"):
        n_old = centroids.shape[-2]
        if n_old == 0:
            similarity, chosen = (keys[..., 1:, :] @ keys[..., 0, :, None]).squeeze(-1), n_new - 1
        else:
            best = (keys @ centroids.transpose(-1, -2)).sort(dim=-1).values
            similarity, chosen = best[..., -1], n_new
            if n_old > 1:
                margins.append((best[..., -1] - best[..., -2]).min().item())
        order = similarity.sort(dim=-1).values
        # new centroids are numbered by their order, which no output depends on
        if 0 < chosen < order.shape[-1]:
            margins.append((order[..., chosen] - order[..., chosen - 1]).min().item())
        return assign(keys, centroids, n_new, ablation)

    def watched_pair(candidates):
        distances = np.sort(candidates.distances[np.isfinite(candidates.distances)])
        if len(distances) > 1:
            margins.append(distances[1] - distances[0])
        if candidates.merge_variance:
            variances = 1 - np.square(candidates.keys).sum(-1)
            margins.append(np.abs(variances - closest_pair.LEAST_VARIANCE).min())
        merge_closest(candidates)

    def watched_drop(rows, max_rows, q, rule):
        keys, pinned, recent = rows[0], rule.pinned(max_rows), rule.recent(max_rows)
        likeness = (keys @ keys.mean(2)[..., None])[..., pinned:keys.shape[2] - recent, 0].sort(-1).values
        n_chosen = max_rows - pinned - recent
        margins.append((likeness[..., n_chosen] - likeness[..., n_chosen - 1]).min().item())
        return drop(rows, max_rows, q, rule)

    with mock.patch.object(dictionary, "assign_chunk", watched), \
            mock.patch.dict(memories._SHRINK, keydiff=watched_drop), \
            mock.patch.object(closest_pair.Candidates, "merge_closest", watched_pair):
        return run(), min(margins)


def write(folder, config, make_tensors, load):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for seed in range(1000):
        torch.manual_seed(seed)
        save_safetensors(os.path.join(folder, "model.safetensors"), make_tensors(config))
        sequences = [torch.randint(config["vocab_size"], (n,)) for n in LENGTHS]
        model = load(folder)
        logits, margin = smallest_margin(lambda: [model(tokens[None])[0] for tokens in sequences])
        if margin >= MARGIN:
            break
    else:
        raise RuntimeError(f"{folder}: no seed gives a margin of {MARGIN}")
    with open(os.path.join(folder, "tokens.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps({"sequences": [tokens.tolist() for tokens in sequences]}) + "\n")
    save_safetensors(os.path.join(folder, "expected.safetensors"),
                     {f"logits.{i}": one.float().contiguous() for i, one in enumerate(logits)})
    print(f"{folder}: seed {seed}, margin {margin:.1e}")


def load_native(folder):
    model = load_model(folder, torch.float64).double()
    return lambda tokens: model(tokens).detach()


def load_paper(folder):
    model = Backbone(folder)
    model.tensors = {name: tensor.double() for name, tensor in model.tensors.items()}
    return model


def main():
    golden, names = sys.argv[1], sys.argv[2:] or {*RULES, *PAPER_MODELS}
    for name, rules in RULES.items():
        if name not in names:
            continue
        ovq = {"chunk_size": 16, "max_centroids": 24, **rules}
        write(os.path.join(golden, "native", name), {**NATIVE, **FIELDS.get(name, {}), "ovq": ovq},
              random_native, load_native)
    with open(os.path.join(golden, "kvm", "ovq-swa", "config.json"), encoding="utf-8") as file:
        base = json.load(file)
    for name, changes in PAPER_MODELS.items():
        if name not in names:
            continue
        write(os.path.join(golden, "kvm", name), {**base, **PAPER, **changes}, random_paper,
              load_paper)


if __name__ == "__main__":
    main()
