"""int4 in groups, as rounded.py writes it."""

import os
import tempfile
import unittest

import torch

import support  # noqa: F401  (the import path)
from ovq.safetensors_io import load_safetensors, save_safetensors
from rounded import rounded, write_rounded


class RoundedTest(unittest.TestCase):
    def test_a_group_has_sixteen_values_and_errs_by_half_a_step(self):
        weights = torch.randn(64, 96)
        for asymmetric in (False, True):
            result = rounded(weights, 32, asymmetric)
            for row in range(64):
                for begin in range(0, 96, 32):
                    part, kept = weights[row, begin:begin + 32], result[row, begin:begin + 32]
                    step = (part.max() - part.min()) / 15 if asymmetric else part.abs().max() / 7
                    self.assertLessEqual(len(kept.unique()), 16)
                    self.assertLessEqual(float((kept - part).abs().max()), float(step) / 2 + 1e-6)

    def test_the_largest_weight_of_a_group_stays(self):
        weights = torch.tensor([[0.5, -3.0, 1.0, 0.0, 10.0, 0.1, 0.2, -0.3]])
        self.assertEqual(float(rounded(weights, 4)[0, 1]), -3.0)
        self.assertEqual(float(rounded(weights, 4)[0, 4]), 10.0)
        asymmetric = rounded(weights, 4, asymmetric=True)
        self.assertEqual([float(asymmetric[0, 1]), float(asymmetric[0, 2])], [-3.0, 1.0])

    def test_zeros_equal_numbers_and_short_groups_come_through(self):
        self.assertTrue(torch.equal(rounded(torch.zeros(2, 40), 32), torch.zeros(2, 40)))
        same = torch.full((2, 40), 0.25)
        self.assertTrue(torch.equal(rounded(same, 32, asymmetric=True), same))

    def test_a_folder_keeps_all_else(self):
        tensors = {"model.embed_tokens.weight": torch.randn(80, 16).bfloat16(),
                   "model.layers.0.self_attn.q_proj.weight": torch.randn(64, 16).bfloat16(),
                   "model.layers.0.gate.weight": torch.randn(2, 16).bfloat16(),
                   "model.layers.0.input_layernorm.weight": torch.randn(16).bfloat16()}
        with tempfile.TemporaryDirectory() as folder:
            model, out = os.path.join(folder, "model"), os.path.join(folder, "out")
            os.makedirs(model)
            save_safetensors(os.path.join(model, "model.safetensors"), tensors)
            for name in ("config.json", "README.md"):
                with open(os.path.join(model, name), "w", encoding="utf-8") as file:
                    file.write("{}")
            self.assertEqual(write_rounded(model, out, 8), (64 * 16, 80 * 16 + 64 * 16 + 32 + 16))
            self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
            written = load_safetensors(os.path.join(out, "model.safetensors"))
        changed = [name for name in tensors if not torch.equal(written[name], tensors[name])]
        self.assertEqual(changed, ["model.layers.0.self_attn.q_proj.weight"])
        self.assertEqual(written[changed[0]].dtype, torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
