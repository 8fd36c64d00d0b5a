"""The reference against float64 logits of small random models."""

import json
import os
import unittest

import torch

import support
from ovq.model import load_model
from ovq.safetensors_io import load_safetensors

GOLDEN = os.path.join(os.path.dirname(support.TRAINING), "tests", "golden", "native")
# float32 rounding through four layers; a wrong assignment or mask is off by 1e-2 and more.
TOLERANCE = 3e-5


class GoldenTest(unittest.TestCase):
    def check_fixture(self, name):
        """Returns how many sets of logits the fixture has."""
        folder = os.path.join(GOLDEN, name)
        model = load_model(folder)
        expected = load_safetensors(os.path.join(folder, "expected.safetensors"))
        with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
            fixture = json.load(file)
        runs = [("logits", None)]
        if "max_centroids_override" in fixture:
            runs.append(("logits_override", fixture["max_centroids_override"]))
        for prefix, max_centroids in runs:
            for i, sequence in enumerate(fixture["sequences"]):
                with torch.no_grad(), self.subTest(fixture=name, tensor=f"{prefix}.{i}"):
                    logits = model(torch.tensor([sequence]), max_centroids)[0]
                    error = (logits - expected[f"{prefix}.{i}"]).abs().max().item()
                    self.assertLess(error, TOLERANCE)
        return len(runs)

    def test_sliding_and_ovq_at_two_dictionary_sizes(self):
        self.assertEqual(self.check_fixture("sw-ovq"), 2)

    def test_sliding_and_full(self):
        self.check_fixture("sw-full")

    def test_sliding_and_vq(self):
        self.check_fixture("sw-vq")

    def test_grouped_queries(self):
        self.check_fixture("sw-ovq-gqa")


if __name__ == "__main__":
    unittest.main()
