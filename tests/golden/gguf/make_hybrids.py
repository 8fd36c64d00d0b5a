#!/usr/bin/python3
"""Writes the files of hybrids and experts beside this, with llama.cpp's converter and its package gguf.

    make_hybrids.py LLAMA_CPP
"""

import json
import pathlib
import random
import struct
import sys

import convert
import numpy

HERE = pathlib.Path(__file__).parent
PUBLISHED = HERE.parent / "published"
OPTIONS = {"granitemoehybrid-moe": {"split": 33}, "kimi_linear-hub": {"split": 45}, "nemotron_h-dense": {},
           "nemotron_h-moe": {"split": 25}, "qwen3_5-tied": {"split": 30, "drafts": True},
           "qwen3_5_moe-hub": {"split": 36, "fuse": True}}
# Two key heads of linear attention for six value heads: 2 x 3 heads in another order are not those of 3 x 2.
UNEVEN = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "float32", "vocab_size": 24,
          "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
          "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
          "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
          "linear_key_head_dim": 4, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
          "max_position_embeddings": 512,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}


def safetensors(tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        content = numpy.ascontiguousarray(values, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_uneven(folder):
    rng = numpy.random.default_rng(3)
    c = UNEVEN
    width, inner = c["hidden_size"], c["intermediate_size"]
    heads, values = c["linear_num_value_heads"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    queries = c["num_attention_heads"] * c["head_dim"]
    shapes = {"model.embed_tokens": (c["vocab_size"], width), "model.norm": (width,)}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[layer + norm] = (width,)
        shapes |= {layer + "mlp.gate_proj": (inner, width), layer + "mlp.up_proj": (inner, width),
                   layer + "mlp.down_proj": (width, inner)}
    linear, full = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    shapes |= {linear + "in_proj_qkv": (2 * keys + values, width), linear + "in_proj_z": (values, width),
               linear + "in_proj_a": (heads, width), linear + "in_proj_b": (heads, width),
               linear + "conv1d": (2 * keys + values, 1, c["linear_conv_kernel_dim"]),
               linear + "norm": (c["linear_value_head_dim"],), linear + "out_proj": (width, values),
               full + "q_proj": (2 * queries, width), full + "k_proj": (c["head_dim"], width),
               full + "v_proj": (c["head_dim"], width), full + "o_proj": (width, queries),
               full + "q_norm": (c["head_dim"],), full + "k_norm": (c["head_dim"],)}
    tensors = {f"{name}.weight": rng.normal(0, shape[-1] ** -0.5, shape) for name, shape in shapes.items()}
    tensors[linear + "A_log"] = rng.uniform(0, 2, heads)
    tensors[linear + "dt_bias"] = rng.normal(0, 1, heads)
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    (folder / "config.json").write_text(json.dumps(UNEVEN, indent=1) + "\n")


def write_experts(path):
    """Blocks of experts of every type that the package decodes: NAME.gguf and their numbers, NAME.safetensors."""
    import gguf
    from gguf import quants
    types = ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "BF16")
    n_experts, width, latent = 3, 4, 256
    writer = gguf.GGUFWriter(path.with_suffix(".gguf"), "nemotron_h_moe")
    writer.add_block_count(len(types))
    writer.add_embedding_length(latent)
    writer.add_head_count(1)
    writer.add_expert_count(n_experts)
    rng, numbers = random.Random(4), {}
    for i, name in enumerate(types):
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (n_experts, width, latent)
        floats = numpy.array([rng.gauss(0, 1) for _ in range(n_experts * width * latent)], "f4").reshape(shape)
        try:
            blocks = quants.quantize(floats, kind)
        except NotImplementedError:  # the package only decodes them: any bits, but for scales that are numbers
            blocks = numpy.frombuffer(rng.randbytes(floats.size // elements * size), "u1").copy()
            blocks = blocks.reshape(-1, size)
            scales = range(size - 2, size, 2) if name == "Q6_K" else range(0, 4, 2)
            for at in scales:
                blocks[:, at + 1] = 0x20 + (blocks[:, at + 1] & 0x03)
            blocks = blocks.reshape(n_experts, width, -1)
        writer.add_tensor(f"blk.{i}.ffn_up_exps.weight", blocks, raw_dtype=kind)
        decoded = quants.dequantize(blocks, kind)
        for expert in range(n_experts):
            numbers[f"model.layers.{i}.mixer.experts.{expert}.up_proj.weight"] = decoded[expert]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".safetensors").write_bytes(safetensors(numbers))


def main():
    llama_cpp = pathlib.Path(sys.argv[1]).resolve()
    for name, options in OPTIONS.items():
        convert.convert(llama_cpp, PUBLISHED / name, HERE / f"{name}.gguf", **options)
    uneven = HERE / "qwen3_5-uneven"
    write_uneven(uneven)
    convert.convert(llama_cpp, uneven, HERE / "qwen3_5-uneven.gguf")
    write_experts(HERE / "experts")


if __name__ == "__main__":
    main()
