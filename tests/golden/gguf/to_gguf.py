#!/usr/bin/env python3
"""Writes a model folder as a GGUF file, laid out as llama.cpp's converter does.

    to_gguf.py FOLDER OUT.gguf [--type F16] [--tokenizer FOLDER --pre NAME] [--ggml libggml-base.so]

--type stores the matrices in that type: F32, F16, BF16 and Q8_0 by itself, others with ggml's library.
--tokenizer adds the tokenizer.json of a folder; --pre is ggml's name of its pre-tokenizer, or "llama" for
SentencePiece's.
"""

import argparse
import ctypes
import json
import math
import pathlib
import struct

U32, I32, F32, BOOL, TEXT, LIST = 4, 5, 6, 7, 8, 9
# {type: (its number, elements of a block, bytes of a block)}
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
         "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
         "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136),
         "BF16": (30, 1, 2)}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    if kind == TEXT:
        return text(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def key(name, kind, value):
    """A key with its value; a list where `value` is one."""
    if not isinstance(value, list):
        return text(name) + struct.pack("<I", kind) + scalar(kind, value)
    head = text(name) + struct.pack("<IIQ", LIST, kind, len(value))
    return head + b"".join(scalar(kind, entry) for entry in value)


def gguf(keys, tensors, version=3):
    """The bytes of a file. keys: [(name, kind, value)]; tensors: {name: (type, shape, bytes)}."""
    infos, data = b"", b""
    for name, (type_name, shape, content) in tensors.items():
        infos += text(name) + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", dim) for dim in reversed(shape))
        infos += struct.pack("<IQ", TYPES[type_name][0], len(data))
        data += content + bytes(-len(content) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(key(*entry) for entry in keys) + infos
    return head + bytes(-len(head) % ALIGNMENT) + data


def load_safetensors(path):
    """{name: (shape, floats)} of a file of F32 tensors."""
    blob = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", blob)[0]
    tensors = {}
    for name, entry in json.loads(blob[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            assert entry["dtype"] == "F32", name
            tensors[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // 4}f", blob[begin:end]))
    return tensors


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def encode(floats, row, type_name, ggml):
    """The bytes of floats in rows, in a type."""
    if type_name == "F32":
        return struct.pack(f"<{len(floats)}f", *floats)
    if type_name == "F16":
        return struct.pack(f"<{len(floats)}e", *floats)
    if type_name == "BF16":
        words = struct.unpack(f"<{len(floats)}I", struct.pack(f"<{len(floats)}f", *floats))
        return struct.pack(f"<{len(floats)}H", *((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words))
    if type_name == "Q8_0":
        blocks = b""
        for at in range(0, len(floats), 32):
            block = floats[at:at + 32]
            scale = max(map(abs, block)) / 127
            quants = [round(x / scale) if scale else 0 for x in block]
            blocks += struct.pack("<e32b", scale, *quants)
        return blocks
    number, elements, size = TYPES[type_name]
    rows = len(floats) // row
    out = ctypes.create_string_buffer(len(floats) // elements * size)
    source = (ctypes.c_float * len(floats))(*floats)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk(ctypes.c_int(number), source, out, ctypes.c_int64(0), ctypes.c_int64(rows),
                             ctypes.c_int64(row), None)
    return out.raw


LAYER = {"input_layernorm.": "attn_norm.", "self_attn.q_proj.": "attn_q.", "self_attn.k_proj.": "attn_k.",
         "self_attn.v_proj.": "attn_v.", "self_attn.qkv_proj.": "attn_qkv.",
         "self_attn.o_proj.": "attn_output.", "self_attn.q_norm.": "attn_q_norm.",
         "self_attn.k_norm.": "attn_k_norm.", "post_attention_layernorm.": "ffn_norm.",
         "mlp.gate_proj.": "ffn_gate.", "mlp.up_proj.": "ffn_up.", "mlp.down_proj.": "ffn_down.",
         "post_feedforward_layernorm.": "post_ffw_norm.", "pre_feedforward_layernorm.": "ffn_norm.",
         "mlp.gate_up_proj.": "ffn_up.", "shared_mlp.output_linear.": "ffn_down.",
         "mamba.in_proj.": "ssm_in.", "mamba.conv1d.": "ssm_conv1d.", "mamba.dt_bias": "ssm_dt.bias",
         "mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.norm.": "ssm_norm.",
         "mamba.out_proj.": "ssm_out."}
OTHER = {"model.embed_tokens.": "token_embd.", "model.norm.": "output_norm.", "lm_head.": "output."}
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "smollm3": "smollm3", "qwen2": "qwen2",
                 "qwen3": "qwen3", "gemma3_text": "gemma3", "olmo2": "olmo2", "olmo3": "olmo2",
                 "phi3": "phi3", "granitemoehybrid": "granitehybrid"}
INTERLEAVED = ("llama", "smollm3", "granitehybrid")


def renamed(name, arch):
    table, prefix = OTHER, ""
    if name.startswith("model.layers."):
        number, name = name.removeprefix("model.layers.").split(".", 1)
        table, prefix = dict(LAYER), f"blk.{number}."
        if arch in ("gemma3", "olmo2"):
            table["post_attention_layernorm."] = "post_attention_norm."
    for begin, other in table.items():
        if name.startswith(begin):
            return prefix + other + name.removeprefix(begin)
    raise ValueError(f"no name for {name}")


def interleave(floats, rows, heads):
    """Moves row s * d / 2 + j of each head of d rows to 2 * j + s."""
    width, half = len(floats) // rows, rows // heads // 2
    out = []
    for head in range(heads):
        for j in range(half):
            for s in range(2):
                row = head * 2 * half + s * half + j
                out += floats[row * width:(row + 1) * width]
    return out


def model_tensors(folder, config, arch):
    """{name in GGUF: (shape, floats)}."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    tensors = {}
    for name, (shape, floats) in load_safetensors(folder / "model.safetensors").items():
        if "shared_mlp.input_linear" in name:
            block, half = name.split(".")[2], len(floats) // 2
            for i, part in enumerate(("gate", "up")):
                tensors[f"blk.{block}.ffn_{part}.weight"] = (
                    [shape[0] // 2, shape[1]], floats[i * half:(i + 1) * half])
            continue
        other = renamed(name, arch)
        if arch in INTERLEAVED and ".q_proj." in name:
            floats = interleave(floats, shape[0], heads)
        if arch in INTERLEAVED and ".k_proj." in name:
            floats = interleave(floats, shape[0], kv_heads)
        if arch == "gemma3" and name.endswith("norm.weight"):
            floats = [float32(x + 1) for x in floats]
        if name.endswith("A_log"):
            floats = [-math.exp(x) for x in floats]
        if name.endswith(("A_log", "mamba.D")):
            shape = [shape[0], 1]
        if name.endswith("mamba.norm.weight"):
            groups = config["mamba_n_groups"]
            shape = [groups, shape[0] // groups]
        if name.endswith("conv1d.weight"):
            shape = [shape[0], shape[2]]
        tensors[other] = (shape, floats)
    rope = config.get("rope_scaling") or {}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config, rope)
    for length in ("long", "short"):
        if f"{length}_factor" in rope:
            factors = rope[f"{length}_factor"]
            tensors[f"rope_factors_{length}.weight"] = ([len(factors)], factors)
    return tensors


def llama3_factors(config, rope):
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    old, low, high = (rope[name] for name in
                      ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    factors = []
    for i in range(0, dim, 2):
        turns = old / (2 * math.pi * config["rope_theta"] ** (i / dim))
        smooth = min(max((turns - low) / (high - low), 0), 1)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return [len(factors)], factors


def model_keys(config, arch):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    rope = config.get("rope_scaling") or {}
    keys = [("general.architecture", TEXT, arch), ("general.alignment", U32, ALIGNMENT)]

    def add(name, kind, value):
        keys.append((f"{arch}.{name}", kind, value))

    add("block_count", U32, config["num_hidden_layers"])
    add("context_length", U32, config["max_position_embeddings"])
    add("embedding_length", U32, config["hidden_size"])
    add("feed_forward_length", U32, config["intermediate_size"])
    add("attention.head_count", U32, heads)
    add("attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"])
    add("rope.freq_base", F32, config["rope_theta"])
    add("vocab_size", U32, config["vocab_size"])
    if "head_dim" in config:
        add("attention.key_length", U32, config["head_dim"])
        add("attention.value_length", U32, config["head_dim"])
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    add("rope.dimension_count", U32, int(head_dim * config.get("partial_rotary_factor", 1)))
    kind = rope.get("rope_type") or rope.get("type")
    if kind in ("linear", "yarn", "longrope"):
        add("rope.scaling.type", TEXT, kind)
    if kind in ("linear", "yarn"):
        add("rope.scaling.factor", F32, rope["factor"])
    if kind == "yarn":
        add("rope.scaling.original_context_length", U32, rope["original_max_position_embeddings"])
        add("rope.scaling.yarn_attn_factor", F32, rope["attention_factor"])
        add("rope.scaling.yarn_beta_fast", F32, rope["beta_fast"])
        add("rope.scaling.yarn_beta_slow", F32, rope["beta_slow"])
    if arch == "phi3":
        original = config["original_max_position_embeddings"]
        add("rope.scaling.original_context_length", U32, original)
        if kind == "longrope":
            scale = config["max_position_embeddings"] / original
            add("rope.scaling.attn_factor", F32, math.sqrt(1 + math.log(scale) / math.log(original)))
    if config.get("sliding_window") and arch in ("gemma3", "olmo2", "phi3"):
        add("attention.sliding_window", U32, config["sliding_window"])
    if arch == "olmo2" and "layer_types" in config:
        add("attention.sliding_window_pattern", BOOL,
            [kind == "sliding_attention" for kind in config["layer_types"]])
    if arch != "granitehybrid":
        add("attention.head_count_kv", U32, kv_heads)
        return keys
    layers = config["layer_types"]
    add("attention.head_count_kv", I32, [kv_heads if kind == "attention" else 0 for kind in layers])
    add("rope.scaling.finetuned", BOOL, config["position_embedding_type"] == "rope")
    add("expert_shared_feed_forward_length", U32, config["shared_intermediate_size"])
    for name, field in (("attention.scale", "attention_multiplier"), ("embedding_scale", "embedding_multiplier"),
                        ("residual_scale", "residual_multiplier"), ("logit_scale", "logits_scaling")):
        add(name, F32, config[field])
    for name, value in (("conv_kernel", config["mamba_d_conv"]), ("state_size", config["mamba_d_state"]),
                        ("group_count", config["mamba_n_groups"]), ("time_step_rank", config["mamba_n_heads"]),
                        ("inner_size", config["mamba_n_heads"] * config["mamba_d_head"])):
        add(f"ssm.{name}", U32, value)
    return keys


def tokenizer_keys(tokenizer, pre, vocab_size, bos=None, eos=None, template=None):
    """The keys of a tokenizer.json. Scores of SentencePiece's pieces are minus the ranks of their merges."""
    model = tokenizer["model"]
    texts = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for token, number in model["vocab"].items():
        texts[number], types[number] = token, NORMAL
        if pre == "llama" and len(token) == 6 and token.startswith("<0x"):
            types[number] = BYTE
    for token in tokenizer["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    keys = [("tokenizer.ggml.model", TEXT, "llama" if pre == "llama" else "gpt2"),
            ("tokenizer.ggml.pre", TEXT, "default" if pre == "llama" else pre),
            ("tokenizer.ggml.tokens", TEXT, texts), ("tokenizer.ggml.token_type", I32, types)]
    if pre == "llama":
        types[model["vocab"][model["unk_token"]]] = UNKNOWN
        ranks = {}
        for merge in model["merges"]:
            made = merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
            ranks.setdefault(made, float(len(ranks)))
        scores = [-ranks.get(token, 0.0) for token in texts]
        keys.append(("tokenizer.ggml.scores", F32, scores))
    else:
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        keys.append(("tokenizer.ggml.merges", TEXT, merges))
    if bos is not None:
        keys += [("tokenizer.ggml.bos_token_id", U32, bos)]
    if eos is not None:
        keys += [("tokenizer.ggml.eos_token_id", U32, eos)]
    if template:
        keys.append(("tokenizer.chat_template", TEXT, template))
    return keys


def convert(folder, type_name="F32", tokenizer=None, pre=None, ggml=None, template=None):
    """The bytes of a folder's model as a GGUF file; tokenizer: a tokenizer.json."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    keys = model_keys(config, arch)
    bos, eos = config.get("bos_token_id"), config.get("eos_token_id")
    if tokenizer is not None:
        keys += tokenizer_keys(tokenizer, pre, config["vocab_size"], bos, eos, template)
    tensors = {}
    for name, (shape, floats) in model_tensors(folder, config, arch).items():
        fits = len(shape) == 2 and shape[1] % TYPES[type_name][1] == 0 and "ssm_" not in name
        kind = type_name if fits else "F32"
        tensors[name] = (kind, shape, encode(floats, shape[-1], kind, ggml))
    return gguf(keys, tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--type", default="F32", choices=TYPES)
    parser.add_argument("--tokenizer")
    parser.add_argument("--pre")
    parser.add_argument("--ggml", help="path of libggml-base.so")
    args = parser.parse_args()
    tokenizer = None
    if args.tokenizer:
        tokenizer = json.loads((pathlib.Path(args.tokenizer) / "tokenizer.json").read_text())
    ggml = ctypes.CDLL(args.ggml) if args.ggml else None
    pathlib.Path(args.out).write_bytes(convert(args.folder, args.type, tokenizer, args.pre, ggml))


if __name__ == "__main__":
    main()
