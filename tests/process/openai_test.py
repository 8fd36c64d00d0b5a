"""OpenAI's own package for Node.js against a real server, unchanged.

usage: openai_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from http_client import http_port, write_chat_model
from server_process import ServerProcess

PACKAGE = "openai@6.49.0"
BUILD = None


def package_folder(build):
    """Returns the folder of the package, which is not in Debian and which tests do not download;
    ends the program without it."""
    folder = os.path.join(build, "npm")
    package = os.path.join(folder, "node_modules", "openai")
    if shutil.which("node") is None or not os.path.isdir(package):
        print(f"SKIPPED: no node, or no package: npm install --prefix {folder} --no-save "
              f"--ignore-scripts {PACKAGE}")
        sys.exit(0)
    return package


class Client(unittest.TestCase):
    def test_the_package(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_client.mjs")
        with tempfile.TemporaryDirectory() as folder:
            model = write_chat_model(os.path.join(folder, "tiny"))
            with ServerProcess(os.path.join(BUILD, "bin", "ovq-server"), model, "--threads", "1",
                               "--state-memory", "64M", "--http-listen", "127.0.0.1:0") as server:
                url = f"http://127.0.0.1:{http_port(server)}/v1"
                run = subprocess.run(["node", script, PATH, url], capture_output=True, text=True,
                                     timeout=120)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("ok: "), 11, run.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build
    PATH = package_folder(BUILD)
    unittest.main(argv=[sys.argv[0], *rest])
