#!/usr/bin/env python3
"""Writes blocks.gguf and blocks.safetensors beside this with ggml's quantizers and dequantizers.

    make_blocks.py libggml-base.so
"""

import ctypes
import json
import pathlib
import random
import struct
import sys

import to_gguf

ROW, GAUSS_ROWS, BIT_ROWS = 256, 3, 2


def decoded(ggml, name, blocks, n):
    if name == "F32":
        return list(struct.unpack(f"<{n}f", blocks))
    function = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}.get(
        name, "dequantize_row_" + name.lower().replace("_k", "_K"))
    out = (ctypes.c_float * n)()
    getattr(ggml, function)(ctypes.c_char_p(blocks + bytes(1024)), out, ctypes.c_int64(n))
    return list(out)


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    rng = random.Random(7)
    tensors, header, data = {}, {}, b""
    for name, (_, elements, size) in to_gguf.TYPES.items():
        floats = [rng.gauss(0, 1) * rng.choice([0.01, 1, 3]) for _ in range(ROW * GAUSS_ROWS)]
        if elements == 1:  # a signed zero, subnormal halves, the largest half
            floats += [-0.0, 6e-8, 1e-7, -65504.0] + [rng.gauss(0, 100) for _ in range(BIT_ROWS * ROW - 4)]
        blocks = to_gguf.encode(floats, ROW, name, ggml)
        n = ROW * (GAUSS_ROWS + BIT_ROWS)
        while len(blocks) < n // elements * size:
            block = bytes(rng.randrange(256) for _ in range(size))
            if all(abs(x) < 1e6 for x in decoded(ggml, name, block, elements)):  # finite scales
                blocks += block
        tensors[name] = (name, [n // ROW, ROW], blocks)
        header[name] = {"dtype": "F32", "shape": [n // ROW, ROW], "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *decoded(ggml, name, blocks, n))
    folder = pathlib.Path(__file__).parent
    (folder / "blocks.gguf").write_bytes(
        to_gguf.gguf([("general.architecture", to_gguf.TEXT, "none")], tensors))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "blocks.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
