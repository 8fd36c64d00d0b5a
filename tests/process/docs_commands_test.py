"""Runs every command of README.md and docs/*.md, read from the files, or checks why it is not run.

docs_commands.txt lists the commands that are not run: those that take too long, whose flags are each
looked up in the program's --help, and those that need what a test does not have (a cluster, a
container engine, a GPU, a dedicated machine). All others run here, with a server if one is expected.

usage: docs_commands_test.py --build BUILD_FOLDER [--list] [unittest arguments]
"""

import argparse
import glob
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from certificates import make_authority, make_certificate, write_tenants
from server_process import ROOT, ServerProcess

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client

BIN = None
LIST = os.path.join(ROOT, "tests", "process", "docs_commands.txt")
# Beginnings of shell command lines; other indented lines are output, files, formulas.
HEAD = re.compile(
    r"(\$ )?(\./|\(?cd |build/|tests/|deploy/|/usr/bin/|ovq-[a-z]+ |python3 |cmake |cpack |kubectl |docker |"
    r"helm |curl |systemctl |apt-get |install -|prometheus |promtool |openssl |printf |token=|echo |tar |"
    r"for |grpcurl |mkdir |export |cp -r )")
# Replacements that shorten loads.
SHORTER = (("--duration 30s", "--duration 1s"), ("--think-time 1s", "--think-time 1ms"),
           ("--requests 160", "--requests 16"), ("--requests 200", "--requests 20"),
           ("--turns 20 --requests 4000", "--turns 2 --requests 16"),
           ("--sweep --requests 1000000 --duration 5s", "--sweep --sweep-levels 2 --sweep-time 1ms --requests 16"))
# Commands that exit with another code: `ovq-inspect` on a folder with problems.
CODES = {"ovq-inspect my-model": 1}


def files():
    return [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]


def blocks(text):
    """Returns indented blocks that follow an empty line, as lists of lines without the indent."""
    found, block = [], []
    for line in [*text.splitlines(), ""]:
        indented = re.match(r"( {4,8})\S", line) or (block and line.startswith("    "))
        if indented:
            block.append(line)
        elif block:
            indent = len(block[0]) - len(block[0].lstrip())
            found.append([each[indent:] for each in block])
            block = []
    return found


def commands_of(block):
    """Returns whole commands: continued lines, loops and functions are one. Other lines are output.
    """
    commands, lines, depth, functions = [], [], 0, set()
    for line in block:
        if not lines:
            function = re.match(r"(\w+)\(\) \{", line)
            if function:
                functions.add(function[1])
            elif not HEAD.match(line) and line.split(" ")[0] not in functions:
                continue
        lines.append(line)
        depth += bool(re.match(r"for |\w+\(\) \{", line))
        depth -= line in ("done", "}")
        # A variable is set for the command after it.
        if not line.endswith("\\") and depth == 0 and not re.match(r"\w+=\S+$|\w+=\$\(", line):
            commands.append("\n".join(lines))
            lines = []
    return commands


def documented():
    """Returns (where, command) of all documented commands."""
    found = []
    for path in files():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for block in blocks(text):
            if re.match(HEAD.pattern + r"|# |\w+\(\) \{", block[0]):
                found += [(os.path.relpath(path, ROOT), command) for command in commands_of(block)]
    return found


def listed():
    """Returns {beginning: reason} of docs_commands.txt."""
    with open(LIST, encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split(": ", 1) for line in file
                 if line.strip() and not line.startswith("#")]
    return {beginning: reason for reason, beginning in pairs}


def first_of(command):
    """Returns the first command itself, also within a loop or a function."""
    for line in command.removeprefix("$ ").split("\n"):
        if not re.match(r"\s*for |\w+\(\) \{| {8,}recent", line):
            return "\n".join([line.strip(), *command.split("\n")[1:]])
    return command


def reason_for(command, table):
    plain = first_of(command)
    fitting = [beginning for beginning in table if plain.startswith(beginning)]
    return table[max(fitting, key=len)] if fitting else None


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_docs_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name in ("models", "tests", "deploy", "clients", "proto", "docs", "README.md"):
            os.symlink(os.path.join(ROOT, name), os.path.join(cls.folder, name))
        for folder in ("build/cpu", "training/runs"):
            os.makedirs(os.path.join(cls.folder, folder))
        for name in set(os.listdir(os.path.join(ROOT, "training"))) - {"runs"}:
            os.symlink(os.path.join(ROOT, "training", name), os.path.join(cls.folder, "training", name))
        os.symlink(BIN, os.path.join(cls.folder, "build", "cpu", "bin"))
        cls.make_files()
        cls.server, cls.guarded = cls.serve(), cls.serve("--tenants", cls.folder + "/tenants.json",
                                                         "--admin-listen", "127.0.0.1:0")
        admin = re.search(r"admin on (\S+)", cls.guarded.stderr())[1]
        cls.env = {**os.environ, "OVQ_SERVER": cls.server.address, "OVQ_ADMIN_SERVER": admin,
                   "OVQ_LISTEN": "127.0.0.1:0", "OVQ_METRICS_ADDRESS": "127.0.0.1:0",
                   "PATH": f"{cls.folder}/bin:{BIN}:{os.environ['PATH']}",
                   "PYTHONPATH": os.path.join(ROOT, "clients", "python"), "HOME": cls.folder}
        with Client(cls.server.address) as client:
            session = client.create_session("x" * 1300, keep_tokens=True).session_id
        with Client(cls.guarded.address, token="operator") as client:
            guarded_session = client.create_session().session_id
        # : Names in the documents, and what replaces them here.
        cls.places = (
            (r"10\.0\.0\.1:50052(,10\.0\.0\.2:50052)?", admin), (r"\bdelete ID\b", f"delete {guarded_session}"),
            (r"\bID\b", session), (r"/etc/ovq/", ""), (r"/var/lib/ovq/", f"{cls.folder}/"),
            (r"127\.0\.0\.1:(50052|8080)|0\.0\.0\.0:50051", "127.0.0.1:0"),
            (r"ovq-server \.\.\.", "ovq-server --model models/python-bytes"),
            (r"--model M\b", "--model models/python-bytes"))
        cls.helps, cls.made = {}, 0

    @classmethod
    def serve(cls, *flags):
        server = ServerProcess(os.path.join(BIN, "ovq-server"), os.path.join(ROOT, "models", "python-bytes"),
                               *flags)
        cls.addClassCleanup(server.kill)
        return server

    @classmethod
    def make_files(cls):
        """Creates what the documents assume: models, tokens, certificates, a trace."""
        path = lambda *names: os.path.join(cls.folder, *names)
        for name in ("granite-4.0-h-350m", "FOLDER"):
            os.symlink(os.path.join(ROOT, "models", "basic-icr-small-full"), path(name))
        os.symlink(os.path.join(ROOT, "tests", "golden", "gguf", "llama-scaled.gguf"), path("qwen3-0.6b-q8_0.gguf"))
        os.mkdir(path("bin"))
        os.symlink(sys.executable, path("bin", "python3"))
        shutil.copytree(os.path.join(ROOT, "models", "python-bytes"), path("my-model"))
        with open(path("my-model", "config.json"), "r+", encoding="utf-8") as file:
            text = file.read().replace('"sliding_window"', '"slidign_window"')
            file.seek(0)
            file.write(text)
        write_tenants(path("tenants.json"), {"root": "operator"})
        with open(path("operator.token"), "w") as file:
            file.write("operator\n")
        make_authority(cls.folder)
        make_certificate(cls.folder, "server")
        with open(path("trace.jsonl"), "w") as file:
            for i in range(4):
                file.write(json.dumps({"timestamp": 200 * i, "input_length": 20, "output_length": 4}) + "\n")

    def help_of(self, program):
        """Returns the --help of a program or script; None if it does not exist."""
        if program not in self.helps:
            path = shutil.which(program, path=self.env["PATH"])
            for folder in ("", "training"):
                beside = os.path.join(ROOT, folder, program)
                if path is None and os.path.isfile(beside):
                    path = beside
            name = os.path.basename(program)
            if path is None and os.path.isfile(os.path.join(BIN, name)):
                path = os.path.join(BIN, name)
            text = None
            if path is not None:
                with open(path, "rb") as file:
                    # flags may be used by programs within programs, too
                    text = file.read().decode(errors="replace")
            self.helps[program] = text
        return self.helps[program]

    def check_flags(self, command):
        words = shlex.split(re.sub(r"[\[\]]", " ", command.removeprefix("$ ").replace("\\\n", " ")),
                            comments=True)
        words = [word.strip("()") for word in words]
        programs = [word for word in words if re.match(
            r"(\./)?(build/|tests/|deploy/|ovq-|[a-z_]+\.py$)", word)]
        program = programs[0] if programs else None
        if words[:3] == ["python3", "-m", "ovq_client"]:
            program = "clients/python/ovq_client/__main__.py"
        if words[0] == "cmake":
            with open(os.path.join(ROOT, "CMakePresets.json"), encoding="utf-8") as file:
                presets = {preset["name"] for preset in json.load(file)["configurePresets"]}
            named = {word for before, word in zip(words, words[1:]) if before == "--preset"}
            self.assertLessEqual(named, presets, command)
            return
        if program is None or not os.path.exists(os.path.join(BIN, os.path.basename(program))) and (
                "bin/bench_" in program or "bin/import_fuzz" in program):
            return  # not in a build without benchmarks
        if program.startswith("build/"):
            program = os.path.basename(program)
        text = self.help_of(program.removeprefix("./"))
        self.assertIsNotNone(text, f"{program} is not there: {command}")
        # for a loop: the help of all its commands
        text += "".join(self.help_of(other) or "" for other in programs[1:])
        if not program.startswith(("ovq-", "clients/")) and not program.endswith(".py"):
            return
        for word in words:
            flag = re.match(r"--([a-z][a-z-]*)", word)
            if flag:
                self.assertTrue(f"--{flag[1]}" in text or flag[1] in text, f"{word}: {command}")

    def run_it(self, command):
        plain = command.removeprefix("$ ")
        if "--tls-ca ca.pem" in plain:  # made by the preceding recipe
            return self.run_with_certificates(plain)
        for long, short in SHORTER:
            plain = plain.replace(long, short)
        for there, here in self.places:
            plain = re.sub(there, here, plain)
        if "--out NEW" in plain:  # the output must not exist
            self.made += 1
            plain = plain.replace("NEW", f"NEW{self.made}")
        if "ovq-chat" in plain and "--prompt" not in plain and "<" not in plain:
            # conversations on a terminal are tested in chat_terminal_test.py
            plain += " < /dev/null"
        server = re.search(r"ovq-server (?!.*--(plan|hash-token|check-config))", plain, re.DOTALL)
        if server or plain.endswith("&"):
            return self.start(plain.rstrip("& \n"))
        folder = os.path.join(self.folder, "training" if " report.py " in plain else "")
        run = subprocess.run(["bash", "-eo", "pipefail", "-c", plain], cwd=folder, env=self.env,
                             capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, CODES.get(command.removeprefix("$ "), 0), f"{command}\n{run.stdout[-2000:]}{run.stderr[-2000:]}\n"
                         f"What a test cannot run stands in {os.path.relpath(LIST, ROOT)}.")
        return run

    def run_with_certificates(self, command):
        folder = self.folder + "/"
        flags = ("--tls-cert", folder + "server.pem", "--tls-key", folder + "server.key",
                 "--tls-client-ca", folder + "ca.pem")
        with ServerProcess(os.path.join(BIN, "ovq-server"),
                           os.path.join(ROOT, "models", "python-bytes"), *flags) as server:
            env = {**self.env, "OVQ_SERVER": f"localhost:{server.port}"}
            run = subprocess.run(["bash", "-c", command], cwd=self.folder, env=env,
                                 capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run

    def start(self, command):
        """Starts a command that keeps running; it must come up, and is ended afterwards."""
        process = subprocess.Popen(["bash", "-c", "exec " + command], cwd=self.folder, env=self.env,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   start_new_session=True)
        try:
            for line in process.stdout:
                if line.startswith("listening on ") or "ready to receive" in line:
                    return
            self.fail(f"{command} ended with {process.wait()}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.close()
            process.wait(60)

    def test_every_command(self):
        table, ran = listed(), 0
        for where, command in documented():
            with self.subTest(where=where, command=command):
                reason = reason_for(command, table)
                if " report.py " in command and importlib.util.find_spec("matplotlib") is None:
                    reason = "flags"
                if reason == "flags":
                    self.check_flags(command)
                elif reason is None:
                    run = self.run_it(command)
                    ran += 1
                    if "--prompt" in command and "--seed" in command:
                        self.worth_seeing(run.stdout)
        self.assertGreater(ran, 40)

    def test_what_quickstart_says_to_try_next(self):
        with open(os.path.join(ROOT, "deploy", "quickstart.sh"), encoding="utf-8") as file:
            block = re.search(r"^cat <<NEXT\n(.*?)^NEXT$", file.read(), re.MULTILINE | re.DOTALL)[1]
        commands = re.findall(r":\s+(?:\$\{export_server\})?(build/\S+(?: \S+)*)", block)
        self.assertEqual(len(commands), 4)
        for command in commands:
            with self.subTest(command):
                self.run_it(command.replace("$model", "models/scripted-chat"))
        texts = re.search(r"read on: +(.*)$", block, re.MULTILINE)[1].split(", ")
        self.assertEqual([text for text in texts if not os.path.exists(os.path.join(ROOT, text))], [])

    def worth_seeing(self, answer):
        """Asserts that the answer shown first in README looks like text: not blank, no repeated
        word."""
        words = re.findall(r"\w+", answer)
        self.assertGreater(len(words), 9, repr(answer))
        self.assertNotRegex(answer, r" {40}")
        self.assertGreater(len(set(words)) / len(words), 0.2, repr(answer))

    def test_the_snippet_of_readme(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            text = file.read()
        (snippet,) = re.findall(r"^    from ovq_client .*\n(?:    .*\n|\n)*", text, re.MULTILINE)
        code = re.sub(r"^    ", "", snippet, flags=re.MULTILINE)
        code = code.replace("127.0.0.1:50051", self.server.address)
        run = subprocess.run([sys.executable, "-c", code], env=self.env, capture_output=True, text=True,
                             timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.worth_seeing(run.stdout)

    def test_the_list_has_nothing_that_no_text_has(self):
        table = listed()
        used = set()
        for _, command in documented():
            plain = first_of(command)
            used |= {beginning for beginning in table if plain.startswith(beginning)}
        self.assertEqual(sorted(set(table) - used), [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build")
    parser.add_argument("--list", action="store_true", help="print what is done with each, and end")
    options, rest = parser.parse_known_args()
    if options.list:
        for where, command in documented():
            print(f"{where}: {reason_for(command, listed()) or 'run'}: {command}")
        sys.exit(0)
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest])
