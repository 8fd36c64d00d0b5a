"""A small random model folder, written with Python's standard library only.

usage: tiny_model.py FOLDER
"""

import array
import json
import os
import random
import struct
import sys

VOCAB = 258
D_MODEL, N_HEADS, HEAD_DIM, D_FF = 64, 2, 32, 96
LAYERS = ["sliding_attention", "ovq_attention"]


def _shapes():
    shapes = {"model.embed_tokens.weight": [VOCAB, D_MODEL]}
    for i in range(len(LAYERS)):
        prefix = f"model.layers.{i}."
        shapes[prefix + "input_layernorm.weight"] = [D_MODEL]
        shapes[prefix + "post_attention_layernorm.weight"] = [D_MODEL]
        for name in ("q_proj", "k_proj", "v_proj"):
            shapes[f"{prefix}self_attn.{name}.weight"] = [N_HEADS * HEAD_DIM, D_MODEL]
        shapes[prefix + "self_attn.o_proj.weight"] = [D_MODEL, N_HEADS * HEAD_DIM]
        shapes[prefix + "self_attn.beta"] = [N_HEADS]
        for name in ("gate_proj", "up_proj"):
            shapes[f"{prefix}mlp.{name}.weight"] = [D_FF, D_MODEL]
        shapes[prefix + "mlp.down_proj.weight"] = [D_MODEL, D_FF]
    shapes["model.norm.weight"] = [D_MODEL]
    shapes["lm_head.weight"] = [VOCAB, D_MODEL]
    return shapes


def _values(name, shape, rng):
    count = 1
    for size in shape:
        count *= size
    if name.endswith("beta"):
        return [8.0] * count
    if len(shape) == 1:
        return [1.0] * count
    scale = 3.0 / shape[-1] ** 0.5
    return [rng.gauss(0.0, scale) for _ in range(count)]


def write_tiny_model(folder, seed=1):
    """Writes config.json and model.safetensors; token id = byte, no end of sequence."""
    os.makedirs(folder, exist_ok=True)
    config = {
        "model_type": "ovq_hybrid",
        "vocab_size": VOCAB,
        "hidden_size": D_MODEL,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": N_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": D_FF,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "layer_types": LAYERS,
        "sliding_window": 32,
        "rope_theta": 10000.0,
        "ovq": {"chunk_size": 32, "max_centroids": 64},
        "torch_dtype": "float32",
        "tokenizer": "bytes",
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    rng = random.Random(seed)
    header, blobs, offset = {}, [], 0
    for name, shape in _shapes().items():
        blob = array.array("f", _values(name, shape, rng)).tobytes()
        end = offset + len(blob)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        blobs.append(blob)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return folder


if __name__ == "__main__":
    write_tiny_model(sys.argv[1])
