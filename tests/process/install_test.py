"""The result of `cmake --install`, and that the installed server accepts the shipped
configurations.

usage: install_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-yaml")
    sys.exit(0)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy")
BUILD = None


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = tempfile.mkdtemp(prefix="ovq_install_test_")
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        for extra in ([], ["--component", "model"]):
            result = run("cmake", "--install", BUILD, "--prefix", cls.prefix, *extra)
            assert result.returncode == 0, result.stderr
        cls.server = os.path.join(cls.prefix, "bin", "ovq-server")

    def test_programs_run_from_where_they_are(self):
        for program in ("ovq-server", "ovq-chat", "ovq-load", "ovq-admin", "ovq-inspect"):
            result = run(os.path.join(self.prefix, "bin", program), "--help")
            self.assertEqual(result.returncode, 0, result.stderr)
        folder = os.path.dirname(os.path.realpath(self.server))
        self.assertTrue(os.path.isfile(os.path.join(folder, "libovq_pieces.so")))
        self.assertTrue(folder.startswith(os.path.realpath(self.prefix)))

    def test_unit_and_model_are_where_the_unit_says(self):
        unit = os.path.join(self.prefix, "lib", "systemd", "system", "ovq-server.service")
        with open(unit) as file:
            text = file.read()
        paths = re.findall(r"(?:ExecStart(?:Pre)?=|file:)" + re.escape(self.prefix) + r"/(\S+)", text)
        self.assertIn("bin/ovq-server", paths)
        for path in paths:
            self.assertTrue(os.path.exists(os.path.join(self.prefix, path)), path)
        with open(os.path.join(self.prefix, "share", "ovq-server", "ovq-server.conf")) as file:
            (model,) = re.findall(r"^model = (/\S+)$", file.read(), re.MULTILINE)
        self.assertTrue(os.path.exists(os.path.join(model, "config.json")), model)

    def test_links_of_the_documentation_hold(self):
        doc = os.path.join(self.prefix, "share", "doc", "ovq-server")
        checked = 0
        for folder, _, names in os.walk(doc):
            for name in names:
                if not name.endswith(".md"):
                    continue
                with open(os.path.join(folder, name)) as file:
                    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", file.read())
                for link in links:
                    if "://" in link:
                        continue
                    self.assertTrue(os.path.exists(os.path.join(folder, link)), (name, link))
                    checked += 1
        self.assertGreater(checked, 50)

    def test_nothing_but_what_is_shipped(self):
        files = [name for _, _, names in os.walk(self.prefix) for name in names]
        self.assertIn("ovq-server.service", files)
        self.assertFalse([name for name in files if name.endswith((".pyc", ".a"))])

    def test_libraries_come_with_the_packages_of_the_list(self):
        if shutil.which("dpkg") is None:
            self.skipTest("no dpkg here")
        with open(os.path.join(DEPLOY, "packages.txt")) as file:
            part = file.read().split("\n# part: run,")[1].split("\n# part: ")[0].splitlines()
        known = {"libc6", "libgcc-s1", *part}
        folder = os.path.dirname(os.path.realpath(self.server))
        used = set()
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            needed = set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", path).stdout))
            found = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", path).stdout, re.MULTILINE))
            for library in needed & set(found):
                owner = run("dpkg", "-S", os.path.realpath(found[library]))
                if owner.returncode == 0:  # except CUDA's, which no Debian package provides
                    used.add(owner.stdout.split(":")[0])
        self.assertGreater(len(used), 8)
        self.assertEqual(sorted(used - known), [])

    def accepts(self, *arguments):
        """Asserts that all options are valid: the start fails with 1 because the model is missing.
        """
        result = run(self.server, *arguments, "--tenants", self.tenants, "--model", "/nonexistent")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("/nonexistent", result.stderr)

    def test_configurations_are_understood(self):
        # Replaces the secret that a deployment provides.
        self.tenants = os.path.join(self.prefix, "tenants.json")
        with open(self.tenants, "w") as file:
            json.dump({"tenants": [{"name": "a", "token_sha256": ["0" * 64]}]}, file)
        self.accepts("--config", os.path.join(DEPLOY, "systemd", "ovq-server.conf"))
        with open(os.path.join(DEPLOY, "kubernetes", "workload.yaml")) as file:
            (container,) = yaml.safe_load(file)["spec"]["template"]["spec"]["containers"]
        self.accepts(*container["args"])
        with open(os.path.join(DEPLOY, "compose.yaml")) as file:
            self.accepts(*yaml.safe_load(file)["services"]["server"]["command"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = os.path.abspath(options.build)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
