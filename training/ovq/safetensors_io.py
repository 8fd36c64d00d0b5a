"""Reads and writes safetensors files of F32, F16 and BF16 tensors.

The format: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes. Each
header entry has dtype, shape and data_offsets relative to the end of the header.
"""

import json
import math
import os
import struct

import numpy as np
import torch

_TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# A larger header length means that the file is damaged.
_MAX_HEADER_BYTES = 100 << 20


class SafetensorsError(ValueError):
    """The file is damaged or has a dtype that models here do not use."""


def _read_header(path, file, file_bytes):
    prefix = file.read(8)
    if len(prefix) < 8:
        raise SafetensorsError(f"{path}: shorter than the header's length field")
    header_bytes = struct.unpack("<Q", prefix)[0]
    if header_bytes > min(file_bytes - 8, _MAX_HEADER_BYTES):
        raise SafetensorsError(f"{path}: header of {header_bytes} bytes does not fit the file")
    try:
        header = json.loads(file.read(header_bytes))
    except ValueError as error:
        raise SafetensorsError(f"{path}: header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise SafetensorsError(f"{path}: header is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _tensor(path, name, entry, data):
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise SafetensorsError(f"{path}: {name}: incomplete header entry") from error
    if dtype not in _TORCH_DTYPES:
        raise SafetensorsError(f"{path}: {name}: dtype {dtype} is not F32, F16 or BF16")
    n_bytes = math.prod(shape) * _BYTES[dtype]
    if not 0 <= begin <= end <= len(data) or end - begin != n_bytes:
        raise SafetensorsError(f"{path}: {name}: bytes {begin}..{end} do not hold {dtype} {shape}")
    # numpy has no bfloat16: the bits are read as int16 and viewed as bfloat16 by torch.
    bits = np.frombuffer(data, np.int32 if dtype == "F32" else np.int16,
                         offset=begin, count=math.prod(shape))
    return torch.from_numpy(bits.copy()).view(_TORCH_DTYPES[dtype]).reshape(shape)


def load_safetensors(path):
    """Returns {name: tensor} in the dtypes of the file."""
    with open(path, "rb") as file:
        header = _read_header(path, file, os.path.getsize(path))
        data = file.read()
    return {name: _tensor(path, name, entry, data) for name, entry in header.items()}


def _raw_bytes(name, tensor):
    if tensor.dtype not in _NAMES:
        raise SafetensorsError(f"{name}: {tensor.dtype} is not float32, float16 or bfloat16")
    tensor = tensor.detach().cpu().contiguous()
    integers = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    return tensor.view(integers).numpy().tobytes() if tensor.dim() else \
        tensor.reshape(1).view(integers).numpy().tobytes()


def save_safetensors(path, tensors):
    """Writes {name: tensor} in name order; the file appears complete or not at all."""
    header, blobs, offset = {}, [], 0
    for name in sorted(tensors):
        blob = _raw_bytes(name, tensors[name])
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start 8-byte aligned
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)
    os.replace(partial, path)
