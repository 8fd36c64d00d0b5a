"""Models in the formats of other projects: names, fields, and the golden models."""

import json
import os
import tempfile
import unittest

import torch

import support
import published
from ovq.config import config_from_dict
from ovq.model import OvqModel
from ovq.safetensors_io import load_safetensors

GOLDEN = os.path.join(os.path.dirname(support.TRAINING), "tests", "golden", "fla")


def fixture_model(name, **changes):
    raw = published.FIXTURES[name][0]
    return OvqModel(config_from_dict({**raw, **changes}))


class PublishedTest(unittest.TestCase):
    NAMES = {
        "fla-gated_deltanet": ("model.embeddings.weight", "model.layers.1.attn_norm.weight",
                               "model.layers.0.attn.q_conv1d.weight", "model.norm.weight",
                               "model.layers.0.attn.o_norm.weight", "lm_head.weight",
                               "model.layers.0.mlp_norm.weight",
                               "model.layers.0.mlp.gate_proj.weight", "model.layers.0.attn.D"),
        "fla-mesa_net": ("model.embeddings.weight", "model.layers.1.attn.lambda_params",
                         "model.layers.1.attn.a_proj.bias", "model.layers.1.mlp.up_proj.weight"),
        "fla-mamba2": ("backbone.embeddings.weight", "backbone.layers.1.norm.weight",
                       "backbone.layers.1.mixer.norm.weight", "backbone.layers.1.mixer.conv1d.bias",
                       "backbone.norm_f.weight", "lm_head.weight"),
        "hf-mamba2": ("backbone.embeddings.weight", "backbone.layers.0.mixer.dt_bias"),
        "state-spaces-mamba2": ("backbone.embedding.weight", "backbone.layers.0.mixer.A_log",
                                "backbone.layers.0.mixer.in_proj.weight", "lm_head.weight"),
    }

    def test_tensors_have_the_projects_names(self):
        for name, some in self.NAMES.items():
            tensors = load_safetensors(os.path.join(GOLDEN, name, "model.safetensors"))
            with self.subTest(format=name):
                self.assertLessEqual(set(some), set(tensors))
                tied = "lm_head.weight" not in some
                self.assertEqual("lm_head.weight" in tensors, not tied)
                native = fixture_model(name).state_dict()
                extra = len(published.FIXTURES[name][2]) + (name == "state-spaces-mamba2")
                self.assertEqual(len(tensors), len(native) + extra)

    def test_golden_models_are_what_the_command_makes(self):
        """Weights and configs are equal to the byte; logits up to other processors' rounding."""
        with tempfile.TemporaryDirectory() as folder:
            for name in published.FIXTURES:
                published.write_fixture(name, folder)
                with self.subTest(format=name):
                    for file in ("config.json", "model.safetensors", "tokens.json"):
                        with open(os.path.join(folder, file), "rb") as made, \
                                open(os.path.join(GOLDEN, name, file), "rb") as kept:
                            self.assertEqual(made.read(), kept.read(), file)
                    made, kept = (load_safetensors(os.path.join(at, "expected.safetensors"))
                                  for at in (folder, os.path.join(GOLDEN, name)))
                    torch.testing.assert_close(made, kept, atol=1e-9, rtol=2.0 ** -22)

    def test_infinity_is_a_bare_word(self):
        with open(os.path.join(GOLDEN, "fla-mamba2", "config.json"), encoding="utf-8") as file:
            self.assertRegex(file.read(), r'"dt_limit": \[\s*0.0,\s*Infinity\s*\]')

    def test_the_padded_vocabulary_is_not_told(self):
        folder = os.path.join(GOLDEN, "state-spaces-mamba2")
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            raw = json.load(file)
        rows = len(load_safetensors(os.path.join(folder, "model.safetensors"))[
            "backbone.embedding.weight"])
        self.assertEqual((raw["vocab_size"], raw["pad_vocab_size_multiple"], rows), (101, 16, 112))

    def test_a_model_keeps_its_vocabulary_and_the_tokens_that_begin_and_end_a_text(self):
        marks = {"bos_token_id": 256, "eos_token_id": 257}
        with tempfile.TemporaryDirectory() as folder:
            for name in published.FORMATS:
                model = fixture_model(name, vocab_size=258, **marks)
                published.write_published(model, name, folder)
                with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                    raw = json.load(file)
                with self.subTest(format=name):
                    padded = raw.get("pad_vocab_size_multiple", 1)
                    self.assertEqual(-(-raw["vocab_size"] // padded) * padded, 258)
                    if name != "state-spaces-mamba2":  # which has no such fields
                        self.assertEqual({field: raw[field] for field in marks}, marks)

    def test_values_of_any_width_come_back(self):
        gdn = {"num_heads": 1, "head_dim": 88, "value_head_dim": 120, "conv_size": 4}
        raw = published.fla_gated_deltanet(fixture_model("fla-gated_deltanet", gdn=gdn).config)
        self.assertEqual(int(raw["head_dim"] * raw["expand_v"]), 120)
        for dim in range(1, 130):
            for value_dim in range(1, 260):
                self.assertEqual(int(dim * published.value_expansion(dim, value_dim)), value_dim)

    def test_what_a_format_cannot_say_is_refused(self):
        gdn = published.FIXTURES["fla-gated_deltanet"][0]
        mamba = published.FIXTURES["fla-mamba2"][0]
        refused = (
            ("fla-mamba2", fixture_model("fla-gated_deltanet"), "layer_types"),
            ("fla-gated_deltanet", fixture_model("fla-gated_deltanet", norm_bias=True),
             "norm_bias"),
            ("fla-gated_deltanet", fixture_model("fla-gated_deltanet", intermediate_size=0),
             "intermediate_size"),
            ("fla-gated_deltanet", fixture_model("fla-gated_deltanet",
                                                 gdn={**gdn["gdn"], "conv_bias": True}),
             "gdn.conv_bias"),
            ("fla-mamba2", fixture_model("fla-mamba2", intermediate_size=8), "intermediate_size"),
            ("fla-mamba2", fixture_model("fla-mamba2", mamba2={**mamba["mamba2"], "num_heads": 2}),
             "mamba2.num_heads"),
            ("hf-mamba2", fixture_model("fla-mamba2"), "mamba2: .* n_groups"),
            ("state-spaces-mamba2", fixture_model("fla-mamba2"), "tie_word_embeddings"),
            ("state-spaces-mamba2", fixture_model("state-spaces-mamba2", rms_norm_eps=1e-6), "rms_norm_eps"),
        )
        with tempfile.TemporaryDirectory() as folder:
            for name, model, field in refused:
                with self.subTest(format=name, field=field), \
                        self.assertRaisesRegex(ValueError, f"^{field}"):
                    published.write_published(model, name, folder)


if __name__ == "__main__":
    unittest.main()
