"""shares.py through the server: layers that are not measured stay exact, in native and in published
folders.

usage: shares_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import string
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, "training"),
                os.path.join(ROOT, "clients", "python")]

try:
    import numpy  # noqa: F401
    import ovq_client  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-numpy, python3-grpcio, python3-protobuf and "
          "protobuf-compiler")
    sys.exit(0)

import shares

BIN = None


def measured(folder, *arguments):
    """Returns (exact bits, {layer: {slots: bits lost}}, shares, (exact, equal, shared) of other
    sequences)."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        shares.main(["--model", folder, "--server", os.path.join(BIN, "ovq-server"), *arguments])
    text = output.getvalue()
    curves = {int(layer): {int(rows): float(bits)
                           for rows, bits in re.findall(r"(\d+) rows: (-?[\d.]+)", curve)}
              for layer, curve in re.findall(r"^layer (\d+): (.*)$", text, re.MULTILINE)}
    *_, last = text.splitlines()
    return (float(re.search(r"exact ([\d.]+) bits", text)[1]), curves,
            json.loads(re.search(r"^shares (.*)$", text, re.MULTILINE)[1]),
            tuple(map(float, re.findall(r"\d+\.\d+", last))))


class Shares(unittest.TestCase):
    def test_a_shipped_model_answers_from_its_first_layer(self):
        folder = os.path.join(ROOT, "models", "basic-icr-small-full")
        for memory in ("paper", "closest-pair"):
            exact, curves, found, (_, equal, shared) = measured(
                folder, "--memory", memory, "--length", "1024", "--centroids", "64")
            self.assertEqual(found, [1.9375, 0.0625], memory)
            self.assertEqual(list(curves), [1, 3])
            self.assertGreater(curves[1][64], 3)
            self.assertLess(max(curves[3].values()), 0.05)
            self.assertLess(exact, 0.1)
            self.assertLess(shared, equal - 1)

    def test_any_folder_and_any_text(self):
        for name, memory, layers in (("granitemoehybrid-dense", "closest-pair", [2, 4]),
                                     ("qwen3_5-text", "closest-pair-all", [1, 4]),
                                     ("cohere2-sw", "paper", [3, 7])):
            with self.subTest(name), tempfile.TemporaryDirectory() as parent:
                folder, text = os.path.join(parent, "model"), os.path.join(parent, "text")
                shutil.copytree(os.path.join(ROOT, "tests", "golden", "published", name), folder)
                # these models have no tokenizer: each letter is an id
                letters = {letter: i + 8 for i, letter in enumerate(string.ascii_letters)}
                with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
                    json.dump({"model": {"type": "BPE", "vocab": letters, "merges": []}}, file)
                with open(text, "w", encoding="utf-8") as file:
                    file.write("".join(random.Random(0).choices(string.ascii_letters, k=500)))
                with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                    before = json.load(file)
                _, curves, found, _ = measured(folder, "--memory", memory, "--text", text, "--length",
                                               "120", "--centroids", "64", "--sequences", "2", "--write")
                self.assertEqual(list(curves), layers)
                for curve in curves.values():
                    self.assertEqual(list(curve), [4, 8, 16, 32, 64, 128])
                    self.assertTrue(any(curve.values()))
                    if memory != "paper":  # as many slots as tokens
                        self.assertEqual(curve[128], 0)
                with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                    self.assertEqual(json.load(file), {**before, "ovq": {"shares": found}})
                self.assertEqual(sum(found), 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
