"""Reading config.json: defaults, round trip, and errors that name the field."""

import json
import os
import tempfile
import unittest

from support import tiny_config

from ovq.config import ConfigError, PairRule, config_from_dict, config_to_dict, load_config


GDN = {"num_heads": 2, "head_dim": 4, "value_head_dim": 8, "conv_size": 4}
MAMBA2 = {"num_heads": 4, "head_dim": 4}
LATTICE = {"num_heads": 2, "num_slots": 4, "value_head_dim": 8}


def with_section(kind, name, section, **changes):
    return tiny_config(layer_types=["sliding_attention", kind], **{name: section}, **changes)


class ConfigTest(unittest.TestCase):
    def test_defaults(self):
        raw = tiny_config()
        del raw["ovq"]
        config = config_from_dict(raw)
        self.assertEqual(config.num_key_value_heads, config.num_attention_heads)
        self.assertEqual(config.value_head_dim, config.head_dim)
        self.assertEqual((config.chunk_size, config.max_centroids), (128, 2048))

    def test_round_trip(self):
        config = config_from_dict(tiny_config(num_key_value_heads=1, value_head_dim=12))
        self.assertEqual(config_from_dict(config_to_dict(config)), config)
        flags = {"normalize_centroids": True, "delta_rule": True}
        config = config_from_dict(tiny_config(ovq={"chunk_size": 8, "max_centroids": 16, **flags}))
        self.assertEqual(config_to_dict(config)["ovq"],
                         {"chunk_size": 8, "max_centroids": 16, **flags})

    def test_shares_of_layers_and_heads(self):
        types = ["sliding_attention", "ovq_attention", "full_attention"]

        def parsed(shares):
            return config_from_dict(tiny_config(
                num_hidden_layers=3, layer_types=types,
                ovq={"chunk_size": 8, "max_centroids": 16, "shares": shares}))
        config = parsed([1.25, [1.0, 0.5]])
        self.assertEqual([config.shares_of(i) for i in range(3)], [(1.0,), (1.25,), (1.0, 0.5)])
        self.assertEqual(config_from_dict(config_to_dict(config)), config)
        for shares, message in ((2, "2 is not a list of 2"), ([2], "not a list of 2"),
                                ([1.25, [0.75]], r"\[0.75\] is not a number, or one for each of 2"),
                                ([1, [1, 2]], "not 1 in the mean"), ([1, [2, 0]], "ovq.shares")):
            with self.subTest(shares=shares), self.assertRaisesRegex(ConfigError, message):
                parsed(shares)

    def test_shares_by_rule(self):
        types = ["sliding_attention", "ovq_attention", "full_attention"]

        def parsed(shares, **ovq):
            return config_from_dict(tiny_config(
                num_hidden_layers=3, layer_types=types,
                ovq={"chunk_size": 8, "max_centroids": 16, "shares": shares, **ovq}))
        both = {"paper": [1.25, 0.75], "closest-pair": [0.5, [1, 2]]}
        config = parsed(both)
        self.assertEqual(config.shares, (1.25, 0.75))
        self.assertEqual(config.read_by("closest-pair").shares, (0.5, (1.0, 2.0)))
        self.assertIsNone(config.read_by("keydiff").shares)
        self.assertEqual(parsed(both, update="closest-pair").shares, (0.5, (1.0, 2.0)))
        self.assertIsNone(parsed({"closest-pair": [0.5, 1.5]}).shares)
        self.assertEqual(config_from_dict(config_to_dict(config)), config)
        for shares, message in (({"exact": [1, 1]}, "ovq.shares: 'exact'"),
                                ({"paper": [1, 2]}, "ovq.shares.paper: .* not 1 in the mean")):
            with self.subTest(shares=shares), self.assertRaisesRegex(ConfigError, message):
                parsed(shares)

    def test_rules_have_values_of_their_own(self):
        def parsed(**ovq):
            return config_from_dict(tiny_config(ovq={"chunk_size": 8, "max_centroids": 16, **ovq}))
        config = parsed(recent_tokens={"closest-pair": 9, "keydiff": 5}, variance={"closest-pair": 1}, pinned_tokens=3,
                        value_weight={"paper": 0, "closest-pair": 2})
        self.assertEqual((config.pair_rule, config.variance), (PairRule(0, 3, 0), 0))
        for rule, pair_rule, variance in (("paper", PairRule(0, 3, 0), 0), ("closest-pair", PairRule(2, 3, 9), 1),
                                          ("keydiff", PairRule(0.5, 3, 5), 0)):
            read = config.read_by(rule)
            self.assertEqual((read.pair_rule, read.variance, read.shares), (pair_rule, variance, None))
            self.assertEqual(read.read_by("paper"), config)
        self.assertEqual(config_from_dict(config_to_dict(config)), config)
        self.assertEqual(parsed(variance={"closest-pair": 1}, update="closest-pair").variance, 1)
        for ovq, message in (({"recent_tokens": {"closest-pair": -1}}, "ovq.recent_tokens.closest-pair"),
                             ({"recent_tokens": {"nobody": 1}}, "ovq.recent_tokens: 'nobody'"),
                             ({"variance": {"keydiff": 1}}, "ovq.variance.keydiff: 1"),
                             ({"chunk_size": {"paper": 8}}, "ovq.chunk_size")):
            with self.subTest(ovq=ovq), self.assertRaisesRegex(ConfigError, message):
                parsed(**ovq)

    def test_full_attention_keeps_the_rules_of_its_slots(self):
        for rules in ({"value_weight": 2}, {"pinned_tokens": 4}, {"recent_tokens": 9}, {"merge_variance": 1}, {"variance": 0.5},
                      {"shares": [1.5, 0.5]}, {"variance": {"closest-pair": 1}}):
            with self.subTest(rules=rules):
                config = config_from_dict(tiny_config(layer_types=["full_attention"] * 2, ovq=rules))
                self.assertEqual(config_from_dict(config_to_dict(config)), config)
        for kind in ("full_attention", "sliding_attention"):
            self.assertNotIn("ovq", config_to_dict(config_from_dict(tiny_config(layer_types=[kind] * 2))))

    def test_round_trip_of_what_only_some_models_have(self):
        raw = with_section("mamba2", "mamba2", {**MAMBA2, "dt_limit": [0.1, None], "expand": 1},
                           intermediate_size=[0, 24], norm_bias=True, final_norm=False,
                           lm_head_bias=True, logit_scale=0.5, pe_abs=True, pe_lam=100,
                           token_shift=True)
        config = config_from_dict(raw)
        self.assertEqual(config.intermediate_sizes, (0, 24))
        self.assertEqual(config.sections["mamba2"].conv_kernel, 4)
        self.assertTrue(config.token_shift)
        written = config_to_dict(config)
        self.assertEqual(config_to_dict(config_from_dict(written)), written)
        self.assertEqual(written["intermediate_size"], raw["intermediate_size"])

    def test_growth_of_queries(self):
        fields = {"attn_scale": 0.25, "floor_scale": 512}
        config = config_from_dict(tiny_config(**fields))
        self.assertEqual((config.attn_scale, config.floor_scale), (0.25, 512))
        written = config_to_dict(config)
        self.assertEqual({name: written[name] for name in fields}, fields)
        self.assertEqual(config_from_dict(tiny_config()).attn_scale, 0)
        for raw, message in ((tiny_config(attn_scale=-1), "^attn_scale: -1"),
                             (tiny_config(floor_scale=0), "^floor_scale: 0"),
                             (tiny_config(attn_scale=1, layer_types=["sliding_attention"] * 2),
                              "^attn_scale: no layer is an attention without position encoding")):
            with self.subTest(message=message), self.assertRaisesRegex(ConfigError, message):
                config_from_dict(raw)

    def test_heads_are_needed_by_softmax_layers_only(self):
        raw = tiny_config(layer_types=["gated_delta_net"] * 2, gdn=GDN, intermediate_size=0)
        del raw["num_attention_heads"], raw["head_dim"]
        config = config_from_dict(raw)
        self.assertEqual(config.intermediate_sizes, (0, 0))
        written = config_to_dict(config)
        self.assertEqual(config_to_dict(config_from_dict(written)), written)
        self.assertEqual(written["intermediate_size"], raw["intermediate_size"])

    def test_errors_of_sections_name_the_field(self):
        def change(section, **changes):
            return {**section, **changes}

        broken = {
            "gdn.num_heads: missing": ("gated_delta_net", {"head_dim": 4}),
            "gdn.num_v_heads: 3": ("gated_delta_net", change(GDN, num_v_heads=3)),
            "gdn.use_gate": ("gated_delta_net", change(GDN, use_gate=1)),
            "gdn.expand_v: unknown": ("gated_delta_net", change(GDN, expand_v=2)),
            "gdn: 3 is not an object": ("gated_delta_net", 3),
            "mamba2.n_groups": ("mamba2", change(MAMBA2, n_groups=3)),
            "mamba2.expand": ("mamba2", change(MAMBA2, expand=2)),
            "mamba2.dt_limit: ": ("mamba2", change(MAMBA2, dt_limit=[0])),
            "mamba2.dt_limit[1]": ("mamba2", change(MAMBA2, dt_limit=[0.5, 0.1])),
            "mesa_net.max_cg_step_training": ("mesa_net", {"num_heads": 2, "head_dim": 4,
                                                           "max_cg_step_training": 0}),
            "mesa_net.lambda_lower_bound": ("mesa_net", {"num_heads": 2, "head_dim": 4,
                                                         "lambda_lower_bound": -1}),
            "lattice.objective": ("lattice", change(LATTICE, objective="mse")),
            "lattice.regularization: 'l1'": ("lattice", change(LATTICE, use_forget_gate=False,
                                                               regularization="l1")),
            "transformer_vq.value_head_dim: missing": ("transformer_vq", {"num_heads": 1}),
        }
        for field, (kind, section) in broken.items():
            name = field.split(".", maxsplit=1)[0].split(":")[0]
            with self.subTest(field=field), self.assertRaises(ConfigError) as caught:
                config_from_dict(with_section(kind, name, section))
            self.assertTrue(str(caught.exception).startswith(field), str(caught.exception))
        with self.assertRaisesRegex(ConfigError, "^gdn: missing"):
            config_from_dict(tiny_config(layer_types=["sliding_attention", "gated_delta_net"]))

    def test_errors_name_the_field(self):
        broken = {
            "hidden_size": {"hidden_size": 0},
            "head_dim": {"head_dim": 7},
            "vocab_size": {"vocab_size": "many"},
            "num_key_value_heads": {"num_key_value_heads": 3},
            "layer_types: 1 entries": {"layer_types": ["ovq_attention"]},
            "layer_types[1]": {"layer_types": ["sliding_attention", "mamba3"]},
            "sliding_window": {"sliding_window": None},
            "ovq.chunk_size": {"ovq": {"chunk_size": -1}},
            "ovq.max_centroids": {"ovq": {"chunk_size": 1, "max_centroids": 1}},
            "ovq.normalize_centroids": {"ovq": {"normalize_centroids": 1}},
            "ovq.delta_rule": {"ovq": {"delta_rule": True}, "num_key_value_heads": 1},
            "ovq.chunk_len": {"ovq": {"chunk_len": 8}},
            "vq.codebook_size": {"layer_types": ["sliding_attention", "vq_attention"]},
            "hidden_act": {"hidden_act": "gelu"},
            "model_type": {"model_type": "llama"},
            "torch_dtype": {"torch_dtype": "int8"},
            "tokenizer_byte_offset": {"tokenizer_byte_offset": 3},
            "eos_token_id": {"eos_token_id": 258},
            "rms_norm_eps": {"rms_norm_eps": 0},
            "tie_word_embeddings": {"tie_word_embeddings": "yes"},
            "dropout": {"dropout": 0.1},
            "intermediate_size: 1 entries": {"intermediate_size": [24]},
            "intermediate_size[1]": {"intermediate_size": [24, -1]},
            "intermediate_size: None": {"intermediate_size": None},
            "num_attention_heads": {"num_attention_heads": None},
            "norm_bias": {"norm_bias": 1},
            "final_norm": {"final_norm": None},
            "logit_scale": {"logit_scale": 0},
            "pe_abs": {"pe_abs": True, "hidden_size": 15},
        }
        for field, change in broken.items():
            with self.subTest(field=field), self.assertRaises(ConfigError) as caught:
                config_from_dict(tiny_config(**change))
            self.assertTrue(str(caught.exception).startswith(field), str(caught.exception))

    def test_file_errors_name_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            for text in ("{", "[]", json.dumps(tiny_config(head_dim=0))):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaisesRegex(ConfigError, "config.json: "):
                    load_config(folder)


if __name__ == "__main__":
    unittest.main()
