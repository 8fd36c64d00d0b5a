#!/usr/bin/env python3
"""Writes the quantized matrices of this folder with the authors' own packing code.

usage: make.py --autoawq CHECKOUT --autogptq CHECKOUT --compressed-tensors CHECKOUT --transformers CHECKOUT

Each checkout is a clone of the project. AutoAWQ's WQLinear_GEMM.from_linear, AutoGPTQ's QuantLinear.pack
and compressed-tensors' pack_to_int32 write the integers; AutoAWQ's dequantize_gemm and
compressed-tensors' unpack_from_int32 read them back, and GPTQ's are read as the forward of its QuantLinear
says. transformers' Fp8Dequantize reads the experts that are stacked, by grids of scales. Values of 8-bit floats are those of ml_dtypes where it is installed, else of the definition of the
format. Needs torch and numpy.
"""
import argparse
import ast
import json
import pathlib
import struct

import numpy as np
import torch

OUT = pathlib.Path(__file__).parent
ROWS, COLUMNS = 32, 96


def functions(path, names, scope):
    """Defines the named functions of a source file, which may be methods, in `scope`."""
    tree = ast.parse(pathlib.Path(path).read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    for node in found:
        node.decorator_list = []
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
    exec(compile(ast.Module(found, []), str(path), "exec"), scope)
    return scope


class Layer:
    """Stands for the module that a packing method fills."""

    def __init__(self, *sizes):
        if sizes:
            self.w_bit, self.group_size, self.in_features, self.out_features = sizes[:4]


def linear(weight):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return layer


def save(path, tensors):
    names = {torch.int32: "I32", torch.int64: "I64", torch.int8: "I8", torch.float32: "F32",
             torch.float16: "F16", torch.uint8: "F8_E4M3"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        dtype = "U8" if name.endswith("exponents_scale_inv") else names[tensor.dtype]
        tensor = tensor.contiguous()
        raw = tensor.numpy().tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def scales_and_zeros(weight, groups, bits):
    """Scales and zero points [rows, groups] of equal groups of columns, from their least and most."""
    parts = weight.reshape(weight.shape[0], groups, -1)
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).half().float()
    return scales, torch.round(-low / scales)


def awq(root, tensors, expected):
    scope = functions(root / "awq/utils/packing_utils.py",
                      ["unpack_awq", "reverse_awq_order", "dequantize_gemm"],
                      {"torch": argparse.Namespace(**vars(torch)),
                       "AWQ_REVERSE_ORDER": [0, 4, 1, 5, 2, 6, 3, 7]})
    # Older versions of torch index with long integers alone.
    scope["torch"].arange = lambda *of, dtype=None, **options: torch.arange(*of, **options)
    functions(root / "awq/modules/linear/gemm.py", ["from_linear"], scope)
    scope["get_best_device"] = lambda: "cpu"
    weight = torch.randn(ROWS, COLUMNS)
    scales, zeros = scales_and_zeros(weight, 3, 4)
    packed = scope["from_linear"](lambda bits, group, width, rows, *_: Layer(bits, group, width, rows),
                                  linear(weight), 4, COLUMNS // 3, scales=scales.t(), zeros=zeros.t())
    tensors["awq.qweight"], tensors["awq.qzeros"] = packed.qweight, packed.qzeros
    tensors["awq.scales"] = packed.scales
    expected["awq"] = scope["dequantize_gemm"](packed.qweight, packed.qzeros, packed.scales.float(), 4,
                                               COLUMNS // 3).t()


def gptq(root, tensors, expected, name, bits, reordered):
    scope = functions(root / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py", ["pack"],
                      {"torch": torch, "np": np, "nn": torch.nn})
    scope["transformers"] = argparse.Namespace(pytorch_utils=argparse.Namespace(Conv1D=tuple))
    weight = torch.randn(ROWS, COLUMNS)
    groups = 3
    scales, zeros = scales_and_zeros(weight, groups, bits)
    zeros = zeros.clamp(min=1)  # the format stores them less one
    index = torch.arange(COLUMNS, dtype=torch.int32) // (COLUMNS // groups)
    if reordered:
        index = index[torch.randperm(COLUMNS)]
    layer = Layer()
    layer.bits, layer.infeatures = bits, COLUMNS
    scope["pack"](layer, linear(weight), scales.clone(), zeros.clone(), index)
    tensors[name + ".qweight"], tensors[name + ".qzeros"] = layer.qweight, layer.qzeros
    tensors[name + ".scales"], tensors[name + ".g_idx"] = layer.scales.half(), layer.g_idx
    shifts = torch.arange(0, 32, bits)
    codes = (layer.qweight[:, None, :] >> shifts[None, :, None]) & (2**bits - 1)
    stored = (layer.qzeros[:, :, None] >> shifts) & (2**bits - 1)
    at = index.long()
    z = (stored + 1).reshape(groups, ROWS)[at]
    expected[name] = ((codes.reshape(COLUMNS, ROWS) - z) * layer.scales[at]).t()


def compressed(root, tensors, expected):
    scope = functions(root / "src/compressed_tensors/compressors/quantized_compressors/pack_quantized.py",
                      ["pack_to_int32", "unpack_from_int32"], {"torch": torch, "math": __import__("math")})
    pack, unpack = scope["pack_to_int32"], scope["unpack_from_int32"]
    for name, bits, groups, has_zeros, columns in (("int4-groups", 4, 3, True, 48),
                                                   ("int4-padded", 4, 1, False, 45),
                                                   ("int8-packed", 8, 2, True, 50)):
        least = -(2 ** (bits - 1))
        codes = torch.randint(least, -least, (ROWS + 2, columns), dtype=torch.int8)
        scales = torch.rand(ROWS + 2, groups) + 0.1
        zeros = torch.randint(least, -least, (ROWS + 2, groups), dtype=torch.int8)
        tensors[name + ".weight_packed"] = pack(codes, bits)
        tensors[name + ".weight_scale"] = scales
        tensors[name + ".weight_shape"] = torch.tensor(codes.shape)
        if has_zeros:
            tensors[name + ".weight_zero_point"] = pack(zeros, bits, packed_dim=0)
        else:
            zeros = torch.zeros_like(zeros)
        read = unpack(tensors[name + ".weight_packed"], bits, codes.shape).float()
        wide = lambda x: x.float().repeat_interleave(columns // groups, 1)
        expected[name] = (read - wide(zeros)) * wide(scales)
    codes = torch.randint(-128, 128, (ROWS, COLUMNS), dtype=torch.int8)
    scales = torch.rand(ROWS, 1)
    tensors["int8-rows.weight"], tensors["int8-rows.weight_scale"] = codes, scales
    expected["int8-rows"] = codes.float() * scales


def e4m3():
    try:
        import ml_dtypes
        return torch.from_numpy(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
                                .astype(np.float32))
    except ImportError:
        codes = np.arange(256)
        exponent, mantissa = codes >> 3 & 15, codes & 7
        values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0**(exponent - 7.0))
        values = np.where(codes & 127 == 127, np.nan, np.where(codes > 127, -values, values))
        return torch.from_numpy(values.astype(np.float32))


def fp8(tensors, expected):
    table = e4m3()
    codes = torch.randint(0, 127, (ROWS, COLUMNS)) + 128 * torch.randint(0, 2, (ROWS, COLUMNS))
    codes.view(-1)[:254] = torch.tensor([c for c in range(256) if c & 127 != 127])  # every value
    for name, leaf, scales, wide in (
            ("fp8-tensor", "weight_scale", torch.tensor(0.37), lambda s: s),
            ("fp8-rows", "weight_scale", torch.rand(ROWS, 1) + 0.1, lambda s: s),
            ("fp8-blocks", "weight_scale_inv", torch.rand(3, 5) + 0.1,
             lambda s: s.repeat_interleave(12, 0).repeat_interleave(20, 1)[:ROWS, :COLUMNS])):
        tensors[name + ".weight"] = codes.to(torch.uint8)
        tensors[f"{name}.{leaf}"] = scales
        expected[name] = table[codes] * wide(scales)


def fp8_experts(root, tensors, expected):
    scope = functions(root / "src/transformers/integrations/finegrained_fp8.py", ["_dequantize_one"], {"torch": torch})
    table, experts = e4m3(), 3
    for name, grid in (("blocks", (4, 3)), ("halves", (2, 1)), ("each", (1, 1)), ("rows", (ROWS, 1)),
                       ("exponents", (ROWS, 6))):
        codes = torch.randint(0, 127, (experts, ROWS, COLUMNS)) + 128 * torch.randint(0, 2, (experts, ROWS, COLUMNS))
        scales = torch.rand(experts, *grid) + 0.1
        if name == "exponents":
            scales = torch.randint(120, 134, (experts, *grid)).to(torch.uint8)
        tensors[f"experts.{name}"] = codes.to(torch.uint8)
        tensors[f"experts.{name}_scale" + ("" if name == "rows" else "_inv")] = scales
        expected[f"experts.{name}"] = scope["_dequantize_one"](None, table[codes], scales, torch.float32)


def main():
    parser = argparse.ArgumentParser()
    for name in ("autoawq", "autogptq", "compressed-tensors", "transformers"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(7)
    for name, fill in (("awq", lambda t, e: awq(options.autoawq, t, e)),
                       ("gptq4", lambda t, e: gptq(options.autogptq, t, e, "gptq4", 4, True)),
                       ("gptq8", lambda t, e: gptq(options.autogptq, t, e, "gptq8", 8, False)),
                       ("compressed-tensors", lambda t, e: compressed(options.compressed_tensors, t, e)),
                       ("fp8", fp8),
                       ("fp8-experts", lambda t, e: fp8_experts(options.transformers, t, e))):
        tensors, expected = {}, {}
        fill(tensors, expected)
        (OUT / name).mkdir(exist_ok=True)
        save(OUT / name / "model.safetensors", tensors)
        save(OUT / name / "expected.safetensors", {k: v.float() for k, v in expected.items()})


main()
