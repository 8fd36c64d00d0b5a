"""ovq-inspect --shares: layers that are not measured stay exact, in native and in published folders.

usage: shares_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import random
import re
import shutil
import string
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = None


# The report names a setting that is kept by these words; its field of the section `ovq`, and the value.
SETTINGS = {"the newest half untouched": ("recent_tokens", 1 << 24),
            "the variance of slots' keys in their scores": ("variance", 1),
            "that variance in distances": ("merge_variance", 1),
            "twice that variance in distances": ("merge_variance", 2),
            "values of weight 0.1 in distances": ("value_weight", 0.1),
            "values of weight 2 in distances": ("value_weight", 2)}


def run(*command):
    """Returns (curves {layer: {slots: bits lost}}, shares, settings that were kept {field: value}, whether the newest half
    untouched was tried, (exact, before, after) of other sequences)."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    text = result.stdout
    curves = {int(layer): {int(slots): float(bits)
                           for slots, bits in re.findall(r"(\d+) slots: (-?[\d.]+)", curve)}
              for layer, curve in re.findall(r"^layer (\d+): (.*)$", text, re.MULTILINE)}
    found = re.search(r"^shares (\[.*\])(, .*)?$", text, re.MULTILINE)
    kept = dict(SETTINGS[said] for said in (found[2] or "").split(", ")[1:])
    tried = "and the newest half untouched" in text
    last = re.search(r"^\d+ other sequences: (.*)$", text, re.MULTILINE)[1]
    return curves, json.loads(found[1]), kept, tried, tuple(map(float, re.findall(r"\d+\.\d+", last)))


class Shares(unittest.TestCase):
    def test_a_shipped_model_answers_from_its_first_layer(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("install python3-numpy")
        folder = os.path.join(ROOT, "models", "basic-icr-small-full")
        for memory in ("paper", "closest-pair", "keydiff"):
            curves, found, _, tried, (_, _, after) = run(
                sys.executable, os.path.join(ROOT, "training", "shares.py"), "--model", folder,
                "--inspect", os.path.join(BIN, "ovq-inspect"), "--memory", memory, "--length", "1024",
                "--slots", "64", "--sequences", "4")
            self.assertEqual(found, [1.9375, 0.0625], memory)
            self.assertEqual(tried, memory != "paper")
            self.assertEqual(list(curves), [1, 3])
            self.assertGreater(curves[1][64], 3)
            self.assertLess(max(curves[3].values()), 0.05)
            self.assertLess(after, 8)

    def test_any_folder_and_any_text(self):
        for name, memory, layers in (("granitemoehybrid-dense", "closest-pair", [2, 4]),
                                     ("qwen3_5-text", "closest-pair-all", [1, 4]),
                                     ("qwen3_5-text", "keydiff-all", [1, 4]),
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
                    expected = json.load(file)
                curves, found, kept, _, (_, before, after) = run(
                    os.path.join(BIN, "ovq-inspect"), folder, "--shares", text, "--memory", memory,
                    "--tokens", "120", "--slots", "64", "--sequences", "2", "--write")
                self.assertEqual(list(curves), layers)
                for curve in curves.values():
                    self.assertEqual(list(curve), [4, 8, 16, 32, 64, 128])
                    self.assertTrue(any(curve.values()))
                    if memory != "paper":  # as many slots as tokens
                        self.assertEqual(curve[128], 0)
                self.assertEqual(sum(found), 2)
                if after < before:
                    expected.setdefault("ovq", {})["shares"] = {memory: found}
                    for field, value in kept.items():
                        expected["ovq"][field] = {memory: value}
                with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                    read = json.load(file)
                self.assertEqual(read, expected)

    def test_wrong_use_says_what_was_expected(self):
        model = os.path.join(ROOT, "models", "basic-icr-small-full")
        for flags, message in ((["--memory", "exact"], "--memory: expected paper"),
                               (["--memory", "paper", "--shares", "/nowhere"], "/nowhere")):
            result = subprocess.run([os.path.join(BIN, "ovq-inspect"), model, *flags],
                                    capture_output=True, text=True, timeout=60, check=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
