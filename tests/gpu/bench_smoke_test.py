"""Checks the result file of a minimal run of bench_cuda.

usage: bench_smoke_test.py PROGRAM
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from gpu_run import built_from

PROGRAM = None


class Smoke(unittest.TestCase):
    def result_of(self, *flags):
        with tempfile.TemporaryDirectory(prefix="ovq_bench_smoke_") as folder:
            path = os.path.join(folder, "bench.json")
            ended = subprocess.run([PROGRAM, "--smoke", "--json", path, *flags], capture_output=True, text=True)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            with open(path) as file:
                result = json.load(file)
        return result

    def test_parts_of_it_run_alone_and_the_model_is_kept(self):
        with tempfile.TemporaryDirectory(prefix="ovq_bench_smoke_") as folder:
            model = os.path.join(folder, "model")
            result = self.result_of("--only", "decode", "--sessions", "2,5", "--steps", "3", "--position", "40",
                                    "--prompt", "33", "--keep-model", model)
            self.assertEqual([(figure["name"], figure["sessions"], len(figure["step_seconds"]))
                              for figure in result["figures"]], [("decode", 2, 3), ("decode", 5, 3)])
            self.assertEqual(result["model"]["decode_position"], 40)
            weights = os.path.join(model, "model.safetensors")
            written = os.stat(weights).st_mtime_ns
            profiled = self.result_of("--profile", "--only", "prefill,decode", "--keep-model", model)
            self.assertEqual((profiled["figures"], profiled["ceilings"]["copy_bytes_per_s"]), ([], 0))
            self.assertEqual(os.stat(weights).st_mtime_ns, written)
        for flags, culprit in ((["--only", "decode,all"], "--only decode,all"), (["--sessions", "1,0"], "--sessions"),
                               (["--steps", "x"], "--steps"), (["--position"], "--position")):
            ended = subprocess.run([PROGRAM, "--smoke", *flags], capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(culprit, ended.stderr)

    def test_int8_states_are_half_as_many_bytes(self):
        wide, narrow = self.result_of(), self.result_of("--state-dtype", "i8")
        self.assertEqual([wide["state_dtype"], narrow["state_dtype"]], ["bf16", "i8"])
        self.assertEqual([figure["name"] for figure in narrow["figures"]],
                         [figure["name"] for figure in wide["figures"]])
        share = narrow["model"]["state_bytes_per_session"] / wide["model"]["state_bytes_per_session"]
        self.assertGreater(share, 0.5)
        self.assertLess(share, 0.54)
        self.assertEqual(subprocess.run([PROGRAM, "--smoke", "--state-dtype", "f32"],
                                        capture_output=True).returncode, 2)

    def test_the_result_says_what_ran_and_every_step(self):
        result = self.result_of()
        self.assertEqual(result["build"], built_from(PROGRAM))
        self.assertEqual(result["build"]["source_hash"], subprocess.run(
            [os.path.join(os.path.dirname(os.path.abspath(__file__)), "source_hash.sh")],
            check=True, capture_output=True, text=True).stdout.strip())
        self.assertIn("-ffp-contract=off", result["build"]["flags"])
        # Two layers of width 64 with a head of 128, feed-forward 64, vocabulary 64.
        products = {(p["in"], p["out"]): p for p in result["products"]}
        self.assertEqual(set(products), {(64, 64), (64, 384), (128, 64), (64, 128)})
        for product in products.values():
            self.assertRegex(product["product"], "^(cuBLASLt|own): .")
        self.assertEqual(sum(product["count"] for product in products.values()), 9)
        self.assertLessEqual({"copy_bytes_per_s", "read_bytes_per_s", "matmul_flops_per_s"},
                             set(result["ceilings"]))
        decode = [figure for figure in result["figures"] if figure["name"] == "decode"]
        self.assertEqual([figure["sessions"] for figure in decode], [1, 3])
        for figure in decode:
            self.assertEqual(len(figure["step_seconds"]), 4)
            self.assertGreater(figure["seconds_without_sampling"], 0)
        self.assertTrue(result["same_bits"])
        self.assertEqual({(figure["name"], figure["sessions"]) for figure in result["figures"]
                          if figure["name"].startswith("product_")},
                         {(f"product_{name}", rows) for name in ("qkv", "output", "gate_up", "down", "head")
                          for rows in (1, 40)})
        updates = next(figure for figure in result["figures"] if figure["name"] == "chunk_updates")
        self.assertEqual([len(run) for run in updates["step_seconds"]], [16])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
