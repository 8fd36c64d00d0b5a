"""The safetensors reader and writer."""

import json
import os
import struct
import tempfile
import unittest

import torch

import support  # noqa: F401  (the import path)
from ovq.safetensors_io import SafetensorsError, load_safetensors, save_safetensors


class SafetensorsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "x.safetensors")

    def write(self, header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        with open(self.path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)

    def test_round_trip_keeps_bits_dtype_and_shape(self):
        tensors = {"a": torch.randn(3, 5), "b": torch.randn(7).half(),
                   "c": torch.randn(2, 2, 2).bfloat16(), "d": torch.tensor(4.0),
                   "e": torch.randn(4, 3).t(), "f": torch.zeros(0, 8)}
        save_safetensors(self.path, tensors)
        loaded = load_safetensors(self.path)
        self.assertEqual(sorted(loaded), sorted(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(loaded[name].dtype, tensor.dtype)
            self.assertEqual(loaded[name].shape, tensor.shape)
            self.assertTrue(torch.equal(loaded[name], tensor), name)
        self.assertEqual(os.listdir(self.folder.name), ["x.safetensors"])

    def test_other_dtypes_are_refused_by_name(self):
        with self.assertRaisesRegex(SafetensorsError, "ids: .*int64"):
            save_safetensors(self.path, {"ids": torch.arange(3)})
        self.write({"ids": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}, bytes(8))
        with self.assertRaisesRegex(SafetensorsError, "ids: dtype I64"):
            load_safetensors(self.path)

    def test_damaged_files_are_refused(self):
        entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
        with open(self.path, "wb") as file:
            file.write(b"\1\2")
        with self.assertRaisesRegex(SafetensorsError, "shorter"):
            load_safetensors(self.path)
        for header, data in ((b"{", b""), (b"[]", b""), ({"w": entry}, bytes(12)),
                             ({"w": {"dtype": "F32"}}, bytes(16)),
                             ({"w": {**entry, "shape": [5]}}, bytes(16))):
            self.write(header, data)
            with self.assertRaises(SafetensorsError):
                load_safetensors(self.path)
        with open(self.path, "wb") as file:
            file.write(struct.pack("<Q", 1 << 40) + b"{}")
        with self.assertRaisesRegex(SafetensorsError, "does not fit"):
            load_safetensors(self.path)


if __name__ == "__main__":
    unittest.main()
