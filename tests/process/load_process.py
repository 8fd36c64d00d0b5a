"""Runs ovq-load, each time with a folder of its own."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest


class WithLoad(unittest.TestCase):
    binary = None  # path of ovq-load, set by main

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def command(self, *flags):
        return [self.binary, *flags]

    def run_load(self, address, *flags, expect=0, stdin=""):
        """Returns (the JSON report, or None; stdout; stderr)."""
        file = self.path("report.json")
        if os.path.exists(file):
            os.remove(file)
        run = subprocess.run(self.command("--server", address, "--output-json", file, *flags),
                             input=stdin, capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, expect, run.stderr)
        if not os.path.exists(file):
            return None, run.stdout, run.stderr
        with open(file, encoding="utf-8") as report:
            return json.load(report), run.stdout, run.stderr
