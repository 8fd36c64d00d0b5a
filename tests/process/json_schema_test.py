"""Answers that keep JSON schemas, judged by ajv.

usage: json_schema_test.py --build BUILD_FOLDER [--program FILE] [--samples N] [--suite FOLDER] [unittest arguments]

--program: sample_constraint, in BUILD_FOLDER/bin. --suite: a checkout of the JSON Schema Test Suite; the whole campaign is `--samples 200 --suite FOLDER`.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ("ajv@8.17.1", "ajv-formats@3.0.1")
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")


def package_folder(build):
    """Returns the folder of the packages, which are not in Debian and which tests do not download; ends the program
    without them."""
    folder = os.path.join(build, "npm")
    modules = os.path.join(folder, "node_modules")
    missing = [name for name in PACKAGES if not os.path.isdir(os.path.join(modules, name.split("@")[0]))]
    if shutil.which("node") is None or missing:
        print(f"SKIPPED: no node, or no packages: npm install --prefix {folder} --no-save --ignore-scripts "
              f"{' '.join(PACKAGES)}")
        sys.exit(0)
    return modules


class Schemas(unittest.TestCase):
    def judge(self, files):
        self.assertNotEqual(files, [])
        run = subprocess.run(["node", os.path.join(HERE, "json_schema_client.mjs"), MODULES, OPTIONS.program,
                              str(OPTIONS.samples), *files], capture_output=True, text=True, timeout=3000)
        print(run.stdout)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_common_schemas(self):
        self.judge([os.path.join(HERE, "..", "golden", "constraint", "schemas.json")])

    def test_official_suite(self):
        if not OPTIONS.suite:
            self.skipTest("no --suite")
        folder = os.path.join(OPTIONS.suite, "tests", "draft2020-12")
        self.judge(sorted(glob.glob(os.path.join(folder, "*.json"))) +
                   [os.path.join(folder, "optional", "format", f"{name}.json") for name in FORMATS] +
                   [os.path.join(folder, "optional", f"{name}.json")
                    for name in ("ecmascript-regex", "bignum", "non-bmp-regex", "float-overflow")])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--program")
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--suite")
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.program = OPTIONS.program or os.path.join(OPTIONS.build, "bin", "sample_constraint")
    MODULES = package_folder(OPTIONS.build)
    unittest.main(argv=[sys.argv[0], *rest])
