"""config.json: defaults, round trip, and errors that name the field."""

import json
import os
import tempfile
import unittest

from support import tiny_config

from ovq.config import ConfigError, config_from_dict, config_to_dict, load_config


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

    def test_errors_name_the_field(self):
        broken = {
            "hidden_size": {"hidden_size": 0},
            "head_dim": {"head_dim": 7},
            "vocab_size": {"vocab_size": "many"},
            "num_key_value_heads": {"num_key_value_heads": 3},
            "layer_types: 1 entries": {"layer_types": ["ovq_attention"]},
            "layer_types[1]": {"layer_types": ["sliding_attention", "mamba2"]},
            "sliding_window": {"sliding_window": None},
            "ovq.chunk_size": {"ovq": {"chunk_size": -1}},
            "ovq.max_centroids": {"ovq": {"chunk_size": 1, "max_centroids": 1}},
            "ovq.normalize_centroids": {"ovq": {"normalize_centroids": True}},
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
