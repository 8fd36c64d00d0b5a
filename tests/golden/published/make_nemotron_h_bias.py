#!/usr/bin/env python3
"""Writes nemotron_h-bias: a random model with `mlp_bias`, and its logits in float64.

The blocks are those of Nemotron-H as transformers computes them (modeling_nemotron_h.py: NemotronHMLP,
NemotronHMoE, NemotronHTopkRouter): with mlp_bias the feed-forwards, the shared expert and the projections into
and out of the experts' space have biases; the experts themselves have none. Needs numpy.
"""
import json
import pathlib
import struct

import numpy as np

OUT = pathlib.Path(__file__).parent / "nemotron_h-bias"
CONFIG = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 48, "hidden_size": 32,
    "hybrid_override_pattern": "-*E*-E", "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 12, "intermediate_size": 40, "mlp_bias": True, "mlp_hidden_act": "relu2", "n_routed_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 28,
    "moe_latent_size": 20, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 4, "torch_dtype": "float32"}
LENGTHS = (1, 7, 33, 64)


def tensors(random):
    d, e, latent = CONFIG["hidden_size"], CONFIG["n_routed_experts"], CONFIG["moe_latent_size"]
    q, kv = (CONFIG[n] * CONFIG["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    made = {"backbone.embeddings.weight": random.normal(0, 1, (CONFIG["vocab_size"], d)),
            "backbone.norm_f.weight": random.normal(1, 0.2, d),
            "lm_head.weight": random.normal(0, 0.3, (CONFIG["vocab_size"], d))}

    def linear(name, out, width, has_bias):
        made[name + ".weight"] = random.normal(0, width**-0.5, (out, width))
        if has_bias:
            made[name + ".bias"] = random.normal(0, 0.5, out)

    for i, kind in enumerate(CONFIG["hybrid_override_pattern"]):
        block = f"backbone.layers.{i}."
        made[block + "norm.weight"] = random.normal(1, 0.2, d)
        block += "mixer."
        if kind == "*":
            for name, out in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                linear(block + name, out, d, False)
            linear(block + "o_proj", d, q, False)
        elif kind == "-":
            linear(block + "up_proj", CONFIG["intermediate_size"], d, True)
            linear(block + "down_proj", d, CONFIG["intermediate_size"], True)
        else:
            linear(block + "gate", e, d, False)
            made[block + "gate.e_score_correction_bias"] = random.normal(0, 0.1, e)
            linear(block + "shared_experts.up_proj", CONFIG["moe_shared_expert_intermediate_size"], d, True)
            linear(block + "shared_experts.down_proj", d, CONFIG["moe_shared_expert_intermediate_size"], True)
            linear(block + "fc1_latent_proj", latent, d, True)
            linear(block + "fc2_latent_proj", d, latent, True)
            for j in range(e):
                linear(f"{block}experts.{j}.up_proj", CONFIG["moe_intermediate_size"], latent, False)
                linear(f"{block}experts.{j}.down_proj", latent, CONFIG["moe_intermediate_size"], False)
    return {name: value.astype(np.float32) for name, value in made.items()}


def logits(weights, tokens):
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def rms(x, weight):
        return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["layer_norm_epsilon"])

    def linear(name, x):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)

    def feed_forward(name, x):
        return linear(name + "down_proj", np.maximum(linear(name + "up_proj", x), 0) ** 2)

    def attention(name, x):
        t, d = len(x), CONFIG["head_dim"]
        q, k, v = (linear(name + part, x).reshape(t, -1, d) for part in ("q_proj", "k_proj", "v_proj"))
        k, v = (np.repeat(part, q.shape[1] // k.shape[1], 1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
        scores[:, np.triu(np.ones((t, t), bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return linear(name + "o_proj", np.einsum("hij,jhd->ihd", scores, v).reshape(t, -1))

    def experts(name, x):
        p = 1 / (1 + np.exp(-linear(name + "gate", x)))
        chosen = np.argsort(-(p + w[name + "gate.e_score_correction_bias"]), -1)[:, :CONFIG["num_experts_per_tok"]]
        latent = linear(name + "fc1_latent_proj", x)
        total = np.zeros_like(latent)
        for t, of_token in enumerate(chosen):
            scale = CONFIG["routed_scaling_factor"] / (p[t, of_token].sum() + 1e-20)
            for e in of_token:
                total[t] += p[t, e] * scale * feed_forward(f"{name}experts.{e}.", latent[t])
        return linear(name + "fc2_latent_proj", total) + feed_forward(name + "shared_experts.", x)

    kinds = {"*": attention, "-": feed_forward, "E": experts}
    x = w["backbone.embeddings.weight"][tokens]
    for i, kind in enumerate(CONFIG["hybrid_override_pattern"]):
        x = x + kinds[kind](f"backbone.layers.{i}.mixer.", rms(x, w[f"backbone.layers.{i}.norm.weight"]))
    return rms(x, w["backbone.norm_f.weight"]) @ w["lm_head.weight"].T


def save(path, arrays):
    header, data = {}, b""
    for name, array in arrays.items():
        raw = array.astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    random = np.random.default_rng(11)
    weights, expected, sequences = tensors(random), {}, []
    for i, n in enumerate(LENGTHS):
        name, tokens = f"s{i}_len{n}", random.integers(0, CONFIG["vocab_size"], n)
        sequences.append({"name": name, "tokens": tokens.tolist()})
        expected["prefill." + name] = expected["decode." + name] = logits(weights, tokens)
    OUT.mkdir(exist_ok=True)
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    (OUT / "tokens.json").write_text(json.dumps({"sequences": sequences}) + "\n")
    save(OUT / "model.safetensors", weights)
    save(OUT / "expected.safetensors", expected)


main()
