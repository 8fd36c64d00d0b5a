"""tests/bench/bench_turns.py: two servers, two rounds, one table; and invalid arguments.

usage: bench_turns_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import re
import subprocess
import sys
import unittest

from server_process import ROOT

BUILD = None  # set by main
LOAD = "--concurrency 2 --requests 4 --warmup 0 --input-length 16 --output-length 8"


def turns(*servers, load=LOAD):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "tests", "bench", "bench_turns.py"), "--build", BUILD, "--model",
         os.path.join(ROOT, "models", "basic-icr-small-ovq"), "--rounds", "2", f"--load={load}",
         *(f"--server={server}" for server in servers)], capture_output=True, text=True, timeout=120)


class BenchTurns(unittest.TestCase):
    def test_servers_and_settings_side_by_side(self):
        other = os.path.join(BUILD, "bin", "ovq-server") + " --target-step-time 1m"
        run = turns("default=", f"1m={other}")
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual(len({line.count("|") for line in lines}), 1)
        self.assertRegex(lines[2], r"^\| default \| .* 1\.00 \| 1\.00 \|$")
        numbers = [float(cell.replace(",", "")) for cell in re.findall(r"[\d,]+\.\d+", lines[3])]
        self.assertEqual(len(numbers), 9)
        self.assertGreater(numbers[5], 0)

    def test_what_it_does_not_take(self):
        for run, culprit in ((turns("no flags"), "expected NAME=FLAGS"),
                             (turns("a=", "a="), "each name once"),
                             (turns("a=--no-such-flag"), "--no-such-flag"),
                             (turns("a=", load="--no-such-flag"), "--no-such-flag")):
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(culprit, run.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
