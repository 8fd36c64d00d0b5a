"""tests/bench/full_size.py on configs of small models: it writes, serves and streams them.

usage: full_size_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

from server_process import ROOT

BUILD = None  # set by main


class FullSize(unittest.TestCase):
    def test_every_published_family(self):
        for name in ("granitemoehybrid-groups", "olmo_hybrid-nope", "cohere2-sw", "qwen3_5-tied",
                     "muse_glimmer-hub", "granitemoehybrid-moe", "qwen3_5_moe-hub", "nemotron_h-moe",
                     "kimi_linear-hub", "llama-smol", "mistral-null", "qwen2-tied", "qwen3-tied", "smollm3-nope",
                     "gemma3_text-1b", "olmo2-mha", "olmo3-yarn", "phi3-longrope"):
            with self.subTest(model=name):
                config = os.path.join(ROOT, "tests", "golden", "published", name, "config.json")
                run = subprocess.run(
                    [sys.executable, os.path.join(ROOT, "tests", "bench", "full_size.py"), "--build",
                     BUILD, "--config", config, "--prompt", "70", "--tokens", "5", "--memory",
                     "closest-pair-all", "--max-centroids", "32"],
                    capture_output=True, text=True, timeout=120)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertRegex(run.stdout, r"serving after .* s, resident \d+ MB\n")
                # The last token is pending outside the state; of 74 tokens a block of 64 are in the
                # dictionary.
                self.assertIn("memory closest-pair-all; prompt of 70 tokens, 5 streamed", run.stdout)
                self.assertRegex(run.stdout, r"the first \d+\.\d\d s after the server's start, ")
                self.assertIn(", 32 merged; state ", run.stdout)

    def test_a_config_of_more_tensors_than_are_named_at_once(self):
        with open(os.path.join(ROOT, "tests", "bench", "shapes", "ovq-478m.json"), encoding="utf-8") as file:
            config = json.load(file)
        config.update(vocab_size=64, hidden_size=32, num_attention_heads=1, num_key_value_heads=1,
                      intermediate_size=32)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "small.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
            run = subprocess.run(
                [sys.executable, os.path.join(ROOT, "tests", "bench", "full_size.py"), "--build", BUILD,
                 "--config", path, "--prompt", "9", "--tokens", "2"],
                capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("prompt of 9 tokens, 2 streamed", run.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
