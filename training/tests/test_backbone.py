"""The KVM mixer in whole models, compared with logits of the KVM paper's published code."""

import json
import os
import unittest
from unittest import mock

import torch

import support
from ovq.backbone import Backbone
from ovq.safetensors_io import load_safetensors

GOLDEN = os.path.join(os.path.dirname(support.TRAINING), "tests", "golden", "kvm")
# float32 rounding through four layers; a wrong row, gate or window changes logits by at least 4e-4.
TOLERANCE = 3e-5
# A value between two bfloat16 numbers can change logits by 1e-4; omitting the rounding by 4e-3.
ROUNDED_TOLERANCE = 2e-3


class BackboneTest(unittest.TestCase):
    def check_fixture(self, name):
        """Compares with the published code's prefill, with and without its rounding, and its
        decode."""
        folder = os.path.join(GOLDEN, name)
        model = Backbone(folder)
        expected = load_safetensors(os.path.join(folder, "expected.safetensors"))
        with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
            sequences = json.load(file)["sequences"]
        self.assertEqual([len(one["tokens"]) for one in sequences], [1, 7, 16, 17, 56, 197])
        for sequence in sequences:
            logits = model(torch.tensor([sequence["tokens"]]))[0]
            for way in ("prefill", "decode"):
                with self.subTest(fixture=name, way=way, sequence=sequence["name"]):
                    error = (logits - expected[f"{way}.{sequence['name']}"]).abs().max().item()
                    self.assertLess(error, TOLERANCE)
            rounded = expected.get(f"prefill_bf16cast.{sequence['name']}")
            if rounded is not None:
                self.assertGreater((logits - rounded).abs().max().item(), ROUNDED_TOLERANCE)
                logits = Backbone(folder, rounded=True)(torch.tensor([sequence["tokens"]]))[0]
                self.assertLess((logits - rounded).abs().max().item(), ROUNDED_TOLERANCE)

    def test_kvm_with_the_power_law(self):
        self.check_fixture("kvm-power-law")

    def test_ovq_beside_a_window(self):
        self.check_fixture("ovq-swa")

    def test_full_attention_beside_a_window(self):
        self.check_fixture("gptalpha-nope-swa")

    def test_flags_windows_and_gates_keep_their_logits(self):
        for name in ("ovq-flags", "bswa-sinks", "post-tokenshift"):
            folder = os.path.join(GOLDEN, name)
            model = Backbone(folder)
            expected = load_safetensors(os.path.join(folder, "expected.safetensors"))
            with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
                sequences = json.load(file)["sequences"]
            self.assertEqual(len(sequences), len(expected))
            for i, tokens in enumerate(sequences):
                error = (model(torch.tensor([tokens]))[0] - expected[f"logits.{i}"]).abs().max()
                self.assertLess(error.item(), TOLERANCE, name)

    def test_what_it_does_not_know_is_named(self):
        folder = os.path.join(GOLDEN, "kvm-power-law")
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            raw = json.load(file)
        raw["kvm_token_shift_mode"] = "none"
        with mock.patch("json.load", lambda _: raw), \
                self.assertRaisesRegex(ValueError, "kvm_token_shift_mode: 'none' is not 'rwkv'"):
            Backbone(folder)


if __name__ == "__main__":
    unittest.main()
