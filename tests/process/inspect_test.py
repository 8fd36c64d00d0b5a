"""ovq-inspect as a program: its exit status, and that it reports all problems at once.

usage: inspect_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tiny_model

INSPECT = None  # path of ovq-inspect, set by main


def inspect(*arguments):
    return subprocess.run([INSPECT, *arguments], capture_output=True, text=True, timeout=60)


def read_header(path):
    """Returns the header of a safetensors file, and its data."""
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8:8 + size]), whole[8 + size:]


def write_header(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Inspect(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ovq_inspect_test_"))
        self.addCleanup(shutil.rmtree, self.folder)
        tiny_model.write_tiny_model(self.folder)

    def edit_config(self, **fields):
        path = self.folder / "config.json"
        config = json.loads(path.read_text())
        config.update(fields)
        path.write_text(json.dumps(config))

    def test_a_model_without_problems(self):
        result = inspect(str(self.folder))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.endswith("no problems\n"), result.stdout)
        self.assertIn("family      ovq_hybrid\n", result.stdout)
        self.assertIn("  0         sliding_attention\n  1         ovq_attention\n", result.stdout)

    def test_json_has_the_sizes_of_sessions(self):
        result = inspect(str(self.folder), "--json", "--positions", "32,64000", "--slot-caps=16,200")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["problems"], [])
        shapes = tiny_model._shapes().values()
        count = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes)
        self.assertEqual(report["parameters"], count)
        self.assertEqual(report["weight_bytes"], 4 * count)
        self.assertEqual(report["tokenizer"]["kind"], "bytes")
        self.assertEqual([(s["slot_cap"], s["position"], s["live_slots"])
                          for s in report["sessions"]],
                         [(16, 32, 10), (16, 64000, 15), (200, 32, 27), (200, 64000, 199)])
        self.assertLess(report["sessions"][1]["state_bytes"], report["sessions"][3]["state_bytes"])

    def test_everything_that_is_wrong_is_told_at_once(self):
        self.edit_config(rms_norm_eps="small", hidden_act="gelu", slidign_window=16,
                         eos_token_id=[1, 258], tokenizer="words",
                         ovq={"chunk_size": 32, "max_centroids": 64, "centroids": 5})
        weights = self.folder / "model.safetensors"
        header, data = read_header(weights)
        del header["model.norm.weight"]  # the data stays: 256 bytes that belong to no tensor
        moved = header.pop("model.layers.1.self_attn.beta")
        header["model.layers.1.self_attn.betta"] = moved
        header["model.layers.0.self_attn.k_proj.weight"]["shape"] = [32, 128]
        header["model.layers.0.self_attn.beta"]["dtype"] = "I32"
        header["lm_head.weight"]["data_offsets"][1] += 4
        header["model.layers.0.mlp.down_proj.weight"]["dtype"] = "F8_E4M3"
        write_header(weights, header, data)
        (self.folder / "generation_config.json").write_text('{"eos_token_id": 999}')
        (self.folder / "tokenizer_config.json").write_text("{}")
        expected = [
            "config.json: rms_norm_eps: expected a number in [0, 1], got \"small\"",
            "config.json: hidden_act: unknown value 'gelu'; known: silu",
            "config.json: slidign_window: unknown field",
            "config.json: ovq.centroids: unknown field",
            "config.json: eos_token_id: expected integers in [0, 257]",
            "config.json: tokenizer: unknown value 'words'; known: bytes",
            "model.safetensors: tensor 'model.norm.weight' is missing; expected [64]",
            "model.safetensors: tensor 'model.layers.1.self_attn.beta' is missing; expected [2]",
            "model.safetensors: tensor 'model.layers.1.self_attn.betta' [2]: no part of the model",
            "model.safetensors: model.layers.0.self_attn.k_proj.weight: expected [64, 64], "
            "got [32, 128]",
            "model.safetensors: model.layers.0.self_attn.beta: expected F32, BF16 or F16, got I32",
            "model.safetensors: tensor 'lm_head.weight': ends at byte",
            "model.safetensors: tensor 'model.layers.0.mlp.down_proj.weight': expected 6144 bytes for "
            "F8_E4M3[64, 96], got 24576",
            "generation_config.json: eos_token_id: expected integers in [0, 257]",
        ]
        result = inspect(str(self.folder))
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        head, problems = result.stdout.split(f"{len(expected)} problems:\n")
        lines = problems.splitlines()
        for text in expected:
            self.assertEqual(sum(line.startswith(text) for line in lines), 1, (text, lines))
        self.assertEqual(len(lines), len(expected), lines)
        as_json = inspect(str(self.folder), "--json")
        self.assertEqual(as_json.returncode, 1)
        self.assertEqual(json.loads(as_json.stdout)["problems"], lines)

    def test_weights_that_are_not_finite_are_all_told(self):
        weights = self.folder / "model.safetensors"
        header, data = read_header(weights)
        data = bytearray(data)
        for name, value, element in (("model.norm.weight", "inf", 3),
                                     ("model.layers.1.self_attn.q_proj.weight", "nan", 130)):
            struct.pack_into("<f", data, header[name]["data_offsets"][0] + 4 * element, float(value))
        write_header(weights, header, bytes(data))
        result = inspect(str(self.folder))
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        lines = sorted(result.stdout.split("2 problems:\n")[1].splitlines())
        self.assertEqual(lines, [
            "model.safetensors: model.layers.1.self_attn.q_proj.weight: expected finite numbers, "
            "got nan at [2, 2]",
            "model.safetensors: model.norm.weight: expected finite numbers, got inf at [3]"])

    def test_shards_missing_truncated_and_overlapping(self):
        weights = self.folder / "model.safetensors"
        header, data = read_header(weights)
        names = list(header)
        parts = {"one": names[:8], "two": names[8:16], "three": names[16:]}
        weight_map = {}
        for part, own in parts.items():
            begin = header[own[0]]["data_offsets"][0]
            end = header[own[-1]]["data_offsets"][1]
            entries = {name: {**header[name], "data_offsets":
                              [offset - begin for offset in header[name]["data_offsets"]]}
                       for name in own}
            write_header(self.folder / f"{part}.safetensors", entries, data[begin:end])
            weight_map |= {name: f"{part}.safetensors" for name in own}
        weights.unlink()
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        self.assertEqual(inspect(str(self.folder)).returncode, 0)

        (self.folder / "one.safetensors").unlink()
        two = self.folder / "two.safetensors"
        entries, data = read_header(two)
        entries[parts["two"][-1]]["data_offsets"] = entries[parts["two"][-2]]["data_offsets"]
        entries[parts["two"][-1]]["shape"] = entries[parts["two"][-2]]["shape"]
        write_header(two, entries, data)
        three = self.folder / "three.safetensors"
        three.write_bytes(three.read_bytes()[:-4])
        result = inspect(str(self.folder))
        self.assertEqual(result.returncode, 1, result.stdout)
        lines = result.stdout.split(" problems:\n")[1].splitlines()
        self.assertIn("one.safetensors: No such file or directory", lines)
        self.assertTrue(any(line.startswith("two.safetensors: tensor ") and "overlaps" in line
                            for line in lines), lines)
        self.assertTrue(any(line.startswith("three.safetensors: tensor 'lm_head.weight': ends at")
                            for line in lines), lines)
        # Tensors of a missing file are not reported as missing.
        self.assertFalse([line for line in lines if "is missing" in line], lines)

    def test_an_empty_file(self):
        (self.folder / "model.safetensors").write_bytes(b"")
        result = inspect(str(self.folder))
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertIn("model.safetensors: holds 0 bytes", result.stdout)

    def test_usage(self):
        for arguments, message in (([], "MODEL: expected a model folder or a GGUF file, got none"),
                                   (["a", "b"], "unexpected argument 'b'"),
                                   (["a", "--position=1"], "unknown flag --position"),
                                   (["a", "--state-dtype=f16"], "--state-dtype: expected f32, bf16 or i8")):
            result = inspect(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertTrue(result.stderr.startswith("ovq-inspect: " + message), result.stderr)
        result = inspect("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("usage: ovq-inspect MODEL", result.stdout)
        none = inspect("/nonexistent")
        self.assertEqual(none.returncode, 1)
        self.assertIn("/nonexistent: expected a folder or a GGUF file\n", none.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    INSPECT = os.path.join(options.build, "bin", "ovq-inspect")
    if not os.path.isfile(INSPECT):
        sys.exit(f"{INSPECT} is missing: build the target ovq-inspect first")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
