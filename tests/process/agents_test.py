"""Packages for Node.js that call models with tools, each against a real server, unchanged.

usage: agents_test.py --build BUILD_FOLDER [unittest arguments]
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
from server_process import ROOT, ServerProcess

PACKAGES = ["openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92",
            "@langchain/openai@1.5.8", "@langchain/core@1.4.0", "@anthropic-ai/sdk@1.14.0",
            "@openai/agents@0.13.3", "zod@4.6.7"]
SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agents")
BUILD = None


def check_packages(build):
    """Ends the program where a package is missing: they are not in Debian, and tests download
    nothing."""
    folder = os.path.join(build, "npm")
    names = [package[:package.rindex("@")] for package in PACKAGES]
    missing = [name for name in names if not os.path.isdir(os.path.join(folder, "node_modules", name))]
    if shutil.which("node") is None or missing:
        print(f"SKIPPED: no node, or no packages ({', '.join(missing)}): npm install --prefix {folder} "
              f"--no-save --ignore-scripts {' '.join(PACKAGES)}")
        sys.exit(0)


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_agents_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # The scripts import packages by name, so a node_modules lies beside them.
        shutil.copytree(SCRIPTS, os.path.join(cls.folder, "agents"))
        os.symlink(os.path.abspath(os.path.join(BUILD, "npm", "node_modules")),
                   os.path.join(cls.folder, "node_modules"))
        models = [os.path.join(ROOT, "models", "scripted-chat"),
                  write_chat_model(os.path.join(cls.folder, "tiny"))]  # its answers do not end
        cls.urls = []
        for model in models:
            server = ServerProcess(os.path.join(BUILD, "bin", "ovq-server"), model, "--threads", "1",
                                   "--http-listen", "127.0.0.1:0")
            cls.addClassCleanup(server.kill)
            cls.urls.append(f"http://127.0.0.1:{http_port(server)}")

    def run_client(self, name, n_tests):
        script = os.path.join(self.folder, "agents", f"{name}.mjs")
        run = subprocess.run(["node", script, *self.urls], capture_output=True, text=True, timeout=300)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("ok: "), n_tests, run.stdout)

    def test_openai(self):
        self.run_client("openai", 10)

    def test_ai_sdk(self):
        self.run_client("ai_sdk", 11)

    def test_langchain(self):
        self.run_client("langchain", 7)

    def test_anthropic(self):
        self.run_client("anthropic", 9)

    def test_openai_agents(self):
        self.run_client("openai_agents", 9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build
    check_packages(BUILD)
    unittest.main(argv=[sys.argv[0], *rest])
