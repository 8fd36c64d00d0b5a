"""The whole path from a recipe to the figure: generates, trains, exports, serves and scores tiny models.

usage: trained_model_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAINING = os.path.join(ROOT, "training")
sys.path.append(os.path.join(ROOT, "clients", "python"))

try:
    import matplotlib  # noqa: F401
    import numpy  # noqa: F401
    import torch  # noqa: F401
    import ovq_client  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-torch, python3-numpy, python3-matplotlib, "
          "python3-grpcio, python3-protobuf and protobuf-compiler")
    sys.exit(0)

# Logits in float32 are within 3e-5 of the exact ones, in the reference (training/tests/
# test_golden.py) as in the server (tests/model/fixtures_test.cc). A log-probability is a logit less
# their log-sum-exp, which moves by no more than they do: twice that, for either side.
LOGPROB_TOLERANCE = 4 * 3e-5
# A key whose scores with two centroids or codes differ by less than float32's rounding may go to either,
# in the reference and in the server, and its value with it. Few sequences have such a key, but which
# have depends on the trained weights, and so on the machine: the median sequence has none. Where one
# has, a value moves between two means of many.
FLIP_TOLERANCE = 1e-2
RECIPE = {
    "config": {
        "model_type": "ovq_hybrid", "vocab_size": 35, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 64,
        "tie_word_embeddings": True, "sliding_window": 16,
        "layer_types": ["sliding_attention", "ovq_attention"] * 2,
        "ovq": {"chunk_size": 16, "max_centroids": 32}, "vq": {"codebook_size": 32},
        "torch_dtype": "float32"},
    "task": {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 32,
             "n_queries": 4},
    "training": {"steps": 40, "phases": "64:1", "batch_tokens": 512, "workers": 1,
                 "compute_dtype": "float32", "held_out_length": 64, "log_steps": 10},
    "score": {"lengths": [128, 512], "centroids": [32, "0.3x"], "check_reference": 1000}}
BIN = None


class TrainedModels(unittest.TestCase):
    """One run for all of these."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.out = os.path.join(folder.name, "out")
        cls.recipe = os.path.join(folder.name, "tiny.json")
        with open(cls.recipe, "w", encoding="utf-8") as file:
            json.dump(RECIPE, file)
        cls.first = cls.reproduce()
        if cls.first.returncode:
            raise AssertionError(cls.first.stdout + cls.first.stderr)

    @classmethod
    def reproduce(cls):
        return subprocess.run(
            [sys.executable, os.path.join(TRAINING, "reproduce.py"), cls.recipe, "--out", cls.out,
             "--server", os.path.join(BIN, "ovq-server"),
             "--server-args=--compute-dtype f32 --state-dtype f32"],
            capture_output=True, text=True, timeout=300, check=False)

    def rows(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def column(self, mixer, name):
        return [int(row[name]) for row in self.rows(f"{mixer}.csv")]

    def test_every_mixer_is_scored_at_every_size(self):
        for mixer, sizes in (("ovq", ["32", "0.3x"]), ("full", [""]), ("vq", [""])):
            rows = self.rows(f"{mixer}.csv")
            self.assertEqual([(row["length"], row["centroids"]) for row in rows],
                             [(length, size) for length in ("128", "512") for size in sizes])
            for row in rows:
                self.assertEqual((row["mixer"], row["backend"]), (mixer, "server"))
                self.assertEqual(int(row["scored"]), 8 * int(row["sequences"]))
                self.assertGreaterEqual(int(row["scored"]), 384)
                self.assertTrue(0 <= float(row["accuracy"]) <= 1)
                self.assertTrue(0 <= float(row["error"]) < 0.1)
        # 127 and 511 tokens: floor(T N / (T + N)), and at most 0.3 T
        self.assertEqual(self.column("ovq", "live_centroids"), [25, 38, 30, 153])

    def test_training_taught_the_models(self):
        losses = {mixer: [float(row["train_bits_per_token"])
                          for row in self.rows(os.path.join(mixer, "curve.csv"))]
                  for mixer in ("ovq", "full", "vq")}
        for mixer, curve in losses.items():
            self.assertLess(curve[-1], curve[0], mixer)
            # vq starts from the trained full model: its own curve falls only a little, by an amount
            # that rounding changes. So all are compared with an untrained model.
            self.assertLess(curve[-1], losses["full"][0] - 0.4, mixer)

    def test_memory_is_bounded_but_for_full_attention(self):
        fixed_short, _, fixed_long, ratio_long = self.column("ovq", "state_bytes")
        self.assertLess(fixed_long, ratio_long)
        self.assertLess(fixed_long, 1.5 * fixed_short)
        full_short, full_long = self.column("full", "state_bytes")
        self.assertGreater(full_long, 2 * full_short)
        vq_short, vq_long = self.column("vq", "state_bytes")
        self.assertLess(vq_long, 1.5 * vq_short)
        cache = self.column("ovq", "full_kv_cache_bytes")
        # 4 layers of 2 heads, keys and values of 16 channels, 4 bytes each
        self.assertEqual(cache, [4 * 2 * 2 * 16 * 4 * n for n in self.column("ovq", "tokens")])

    def test_served_predictions_are_the_reference_s(self):
        for mixer in ("ovq", "full", "vq"):
            for row in self.rows(f"{mixer}.csv"):
                self.assertEqual(row["checked"], row["scored"])
                self.assertGreaterEqual(float(row["agreement"]), 0.999)
                largest = float(row["logprob_difference"])
                self.assertLess(largest, LOGPROB_TOLERANCE if mixer == "full" else FLIP_TOLERANCE)
        medians = re.findall(r"in the median sequence within ([-+.0-9e]+)", self.first.stdout)
        self.assertEqual(len(medians), 8)
        for median in medians:
            self.assertLess(float(median), LOGPROB_TOLERANCE)

    def test_figure_and_table_are_there(self):
        self.assertIn(os.path.join(self.out, "scores.png"), self.first.stdout)
        with open(os.path.join(self.out, "scores.png"), "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        with open(os.path.join(self.out, "scores.md"), encoding="utf-8") as file:
            table = file.read()
        for start in ("### basic_icr", "| | 128 | 512 |", "| full | ", "| vq | ", "| ovq N=32 | ",
                      "| ovq n=0.3T | "):
            self.assertIn("\n" + start, "\n" + table)

    def test_a_second_call_repeats_nothing(self):
        checkpoint = os.path.join(self.out, "ovq", "checkpoint.pt")
        before = os.stat(checkpoint).st_mtime_ns, self.rows("ovq.csv")
        again = self.reproduce()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertNotIn("training", again.stdout)
        self.assertNotIn("scoring", again.stdout)
        self.assertEqual((os.stat(checkpoint).st_mtime_ns, self.rows("ovq.csv")), before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
