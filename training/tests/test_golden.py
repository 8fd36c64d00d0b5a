"""The reference compared with float64 logits of small random models."""

import json
import os
import unittest

import torch

import support
from ovq.hybrids import Granite, Qwen
from ovq.model import load_model
from ovq.safetensors_io import load_safetensors

GOLDEN = os.path.join(os.path.dirname(support.TRAINING), "tests", "golden", "native")
# float32 rounding through a few layers; a wrong assignment or mask changes logits by at least 1e-2.
TOLERANCE = 3e-5
# Relative to a logit: the rounding of its storage as float32, beside 1e-9 for other orders of sums.
STORED = 2.0 ** -24


class GoldenTest(unittest.TestCase):
    def check_fixture(self, name):
        """Checks in float32 and float64; returns how many sets of logits the fixture has."""
        folder = os.path.join(GOLDEN, name)
        expected = load_safetensors(os.path.join(folder, "expected.safetensors"))
        with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
            fixture = json.load(file)
        runs = [("logits", None)]
        if "max_centroids_override" in fixture:
            runs.append(("logits_override", fixture["max_centroids_override"]))
        model = load_model(folder)
        for dtype, absolute, relative in ((torch.float32, TOLERANCE, 0),
                                          (torch.float64, 1e-9, STORED)):
            model, model.compute_dtype = model.to(dtype), dtype
            for prefix, max_centroids in runs:
                for i, sequence in enumerate(fixture["sequences"]):
                    with torch.no_grad(), self.subTest(dtype=dtype, tensor=f"{prefix}.{i}"):
                        logits = model(torch.tensor([sequence]), max_centroids)[0]
                        torch.testing.assert_close(logits, expected[f"{prefix}.{i}"].to(dtype),
                                                   atol=absolute, rtol=relative)
        return len(runs)

    def test_sliding_and_ovq_at_two_dictionary_sizes(self):
        self.assertEqual(self.check_fixture("sw-ovq"), 2)

    def test_every_other_mixer(self):
        for name in ("sw-full", "sw-vq", "sw-ovq-gqa", "sw-gdn", "gdn-ovq", "mamba2-ovq", "mesa-sw",
                     "sw-lattice", "lattice-enc-l1", "lattice-sim", "transformer-vq", "ovq-normalize",
                     "ovq-min-state", "ovq-rates-only", "ovq-delta", "ovq-normalize-delta",
                     "ovq-shares", "ovq-head-shares", "ovq-variance", "closest-pair-variance",
                     "closest-pair-merge-variance",
                     "closest-pair-shares", "keydiff-shares", "keydiff-spared",
                     "sw-closest-pair", "query-growth"):
            with self.subTest(fixture=name):
                self.check_fixture(name)

    def test_published_hybrids_exactly_and_bounded(self):
        for name, decoder in (("granitemoehybrid-dense", Granite), ("qwen3_5-text", Qwen)):
            folder = os.path.join(os.path.dirname(GOLDEN), "published", name)
            exact = load_safetensors(os.path.join(folder, "expected.safetensors"))
            bounded = load_safetensors(os.path.join(folder, "bounded.safetensors"))
            with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
                runs = [(sequence["tokens"], None, exact[f"prefill.{sequence['name']}"])
                        for sequence in json.load(file)["sequences"]]
            with open(os.path.join(folder, "bounded.json"), encoding="utf-8") as file:
                fixture = json.load(file)
            runs += [(tokens, fixture["max_centroids"], bounded[f"logits.{i}"])
                     for i, tokens in enumerate(fixture["sequences"])]
            for tokens, max_rows, expected in runs:
                with self.subTest(fixture=name, n_tokens=len(tokens), max_rows=max_rows):
                    logits = decoder(folder, max_rows)(torch.tensor([tokens]))[0]
                    torch.testing.assert_close(logits, expected.double(), atol=TOLERANCE, rtol=0)


if __name__ == "__main__":
    unittest.main()
