"""Coding agents of npm's, unchanged but for their settings, each change a file by a call of the shipped model.

usage: coding_agents_test.py --build BUILD_FOLDER [unittest arguments]

Their prompts have 12,000 to 32,000 tokens. The model finds the shell's tool there, calls it by its name with the
arguments that it requires, and says in words that it is done when the result is there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from http_client import http_port
from server_process import ROOT, ServerProcess

MODEL = os.path.join(ROOT, "models", "scripted-chat")
AGENTS = {"@openai/codex": "0.171.0", "opencode-ai": "1.18.33", "@qwen-code/qwen-code": "0.24.4"}
WRITTEN = "buy milk"
PROMPT = f"Run `echo {WRITTEN} > notes.txt`"
BUILD = None


class Agents(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_coding_agents_test_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.project = os.path.join(self.folder, "project")
        self.notes = os.path.join(self.project, "notes.txt")
        os.mkdir(self.project)
        with open(self.notes, "w") as file:
            file.write("empty\n")
        self.server = ServerProcess(os.path.join(BUILD, "bin", "ovq-server"), MODEL, "--threads", "1", "--http-listen",
                                    "127.0.0.1:0")
        self.addCleanup(self.server.kill)
        self.url = f"http://127.0.0.1:{http_port(self.server)}/v1"

    def run_agent(self, command, **env):
        command[0] = os.path.join(BUILD, "npm", "node_modules", command[0])
        env = {**os.environ, "HOME": self.folder, "PWD": self.project, "OPENAI_API_KEY": "none", **env}
        run = subprocess.run(command, cwd=self.project, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=240)
        told = run.stdout + run.stderr + self.server.stderr()[-4000:]
        self.assertEqual(run.returncode, 0, told)
        with open(self.notes) as file:
            self.assertEqual(file.read().strip(), WRITTEN, told)
        self.assertIn("Done.", run.stdout, told)

    def test_codex(self):
        os.mkdir(os.path.join(self.folder, ".codex"))
        with open(os.path.join(self.folder, ".codex", "config.toml"), "w") as file:
            file.write('model = "scripted-chat"\nmodel_provider = "ovq"\nweb_search = "disabled"\n'
                       f'[model_providers.ovq]\nname = "ovq"\nbase_url = "{self.url}"\n')
        self.run_agent([".bin/codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                        PROMPT])

    def test_opencode(self):
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "ovq", "options": {"baseURL": self.url, "apiKey": "none"},
                    "models": {"scripted-chat": {"tool_call": True, "temperature": True}}}
        with open(os.path.join(self.project, "opencode.json"), "w") as file:
            json.dump({"model": "ovq/scripted-chat", "provider": {"ovq": provider}, "permission": {"bash": "allow"},
                       "autoupdate": False, "share": "disabled"}, file)
        self.run_agent(["opencode-linux-x64/bin/opencode", "run", PROMPT], OPENCODE_DISABLE_AUTOUPDATE="1",
                       OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_LSP_DOWNLOAD="1")

    def test_qwen_code(self):
        self.run_agent([".bin/qwen", "--auth-type", "openai", "--yolo", "--prompt", PROMPT], OPENAI_BASE_URL=self.url,
                       OPENAI_MODEL="scripted-chat")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = os.path.abspath(options.build)
    # They are not in Debian, and tests download nothing.
    at = os.path.join(BUILD, "npm")
    missing = [name for name in AGENTS if not os.path.isdir(os.path.join(at, "node_modules", name))]
    if shutil.which("node") is None or missing:
        packages = " ".join(f"{name}@{version}" for name, version in AGENTS.items())
        print(f"SKIPPED: no node, or no packages ({', '.join(missing)}): npm install --prefix {at} --no-save "
              f"--ignore-scripts {packages}")
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *rest])
