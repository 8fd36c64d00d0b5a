"""The Python package as users get it: sdist and wheel, built and installed without a network.

usage: python_package_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

for module, package in (("grpc", "python3-grpcio"), ("wheel", "python3-wheel"),
                        ("setuptools", "python3-setuptools"), ("ensurepip", "python3-venv")):
    if importlib.util.find_spec(module) is None:
        print(f"SKIPPED: no module {module}; install {package}")
        sys.exit(0)

from server_process import ROOT, ServerProcess

PACKAGE = Path(ROOT, "clients", "python")
BIN = None
MAKE = "import sys; from setuptools import build_meta as b; b.build_sdist({0!r}); b.build_wheel({0!r})"
WHEEL = "import sys; from setuptools import build_meta as b; b.build_wheel({0!r})"
STREAM = """
import sys
from ovq_client import Client, TokenChunk
import ovq_client
assert "site-packages" in ovq_client.__file__, ovq_client.__file__
with Client(sys.argv[1]) as client:
    for event in client.generate("import os", max_tokens=8, seed=1):
        if isinstance(event, TokenChunk):
            print(len(event.token_ids), flush=True)
"""


def run(*command, cwd=None, env=None):
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd,
                            env=env or os.environ)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_python_package_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Builds in a copy, because setuptools leaves folders beside what it builds.
        cls.tree = Path(cls.folder, "tree")
        shutil.copytree(PACKAGE, cls.tree / "clients" / "python",
                        ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        shutil.copytree(Path(ROOT, "proto"), cls.tree / "proto")
        cls.dist = Path(cls.folder, "dist")
        run(sys.executable, "-c", MAKE.format(str(cls.dist)), cwd=cls.tree / "clients" / "python")
        (cls.wheel,) = cls.dist.glob("*.whl")
        (cls.sdist,) = cls.dist.glob("*.tar.gz")

    def version(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
            return re.search(r"project\(ovq_server VERSION (\S+)", file.read()).group(1)

    def test_contents(self):
        name = f"ovq_client-{self.version()}"
        self.assertEqual(self.wheel.name, f"{name}-py3-none-any.whl")
        modules = {path.name for path in (PACKAGE / "ovq_client").glob("*.py")}
        with zipfile.ZipFile(self.wheel) as wheel:
            inside = {Path(entry).name for entry in wheel.namelist()
                      if entry.startswith("ovq_client/")}
            metadata = wheel.read(f"{name}.dist-info/METADATA").decode()
        self.assertEqual(inside, modules | {"py.typed", "descriptors.pb"})
        self.assertIn("Requires-Python: >=3.9", metadata)
        with tarfile.open(self.sdist) as sdist:
            inside = {Path(entry).name for entry in sdist.getnames()}
        self.assertLessEqual(modules | {"py.typed", "descriptors.pb", "README.md", "tour.py", "tools.py"}, inside)

    def test_a_wheel_of_the_sdist_needs_no_protoc(self):
        folder = Path(self.folder, "from_sdist")
        with tarfile.open(self.sdist) as sdist:
            sdist.extractall(folder)  # one of our own
        (source,) = folder.iterdir()
        path = Path(self.folder, "no_protoc")
        path.mkdir()
        out = Path(self.folder, "from_sdist_dist")
        run(sys.executable, "-c", WHEEL.format(str(out)), cwd=source,
            env={**os.environ, "PATH": str(path)})
        (wheel,) = out.glob("*.whl")
        with zipfile.ZipFile(wheel) as again, zipfile.ZipFile(self.wheel) as first:
            self.assertEqual(again.read("ovq_client/descriptors.pb"),
                             first.read("ovq_client/descriptors.pb"))

    def test_installed_into_a_fresh_environment_it_streams(self):
        venv = Path(self.folder, "venv")
        run(sys.executable, "-m", "venv", "--system-site-packages", str(venv))
        python = str(venv / "bin" / "python")
        # The dependencies must be installed as system packages.
        env = {"PATH": str(venv / "bin"), "HOME": self.folder}
        run(python, "-m", "pip", "install", "--no-index", "--quiet", str(self.wheel), env=env)
        with ServerProcess(os.path.join(BIN, "ovq-server"),
                           os.path.join(ROOT, "models", "python-bytes")) as server:
            streamed = run(python, "-c", STREAM, server.address, cwd=self.folder, env=env).split()
            self.assertEqual(sum(map(int, streamed)), 8)
            self.assertGreater(len(streamed), 1)
            program = str(venv / "bin" / "ovq-client")
            answer = run(program, "--server", server.address, "generate", "--text", "import os",
                         "--max-tokens", "8", env=env)
            self.assertGreaterEqual(len(answer), 1)
            tour = run(python, str(PACKAGE / "examples" / "tour.py"), cwd=self.folder,
                       env={**env, "OVQ_SERVER": server.address})
            self.assertIn("tokens of four answers: [20, 20, 20, 20]", tour)
            self.assertIn("INVALID_ARGUMENT - sampling.temperature", tour)
        version = run(program, "--version", env=env)
        self.assertEqual(version, f"ovq_client {self.version()}\n")


@unittest.skipIf(importlib.util.find_spec("mypy") is None, "no mypy here")
class Types(unittest.TestCase):
    def mypy(self, *paths):
        with tempfile.TemporaryDirectory() as cache:
            return subprocess.run(
                [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--disable-error-code=import",
                 "--enable-incomplete-feature=Unpack", "--cache-dir", cache, *paths],
                capture_output=True, text=True, timeout=240, cwd=PACKAGE).stdout

    def test_they_hold_and_callers_see_them(self):
        self.assertIn("Success", self.mypy("ovq_client", "examples/tour.py", "examples/tools.py"))
        with tempfile.NamedTemporaryFile("w", suffix=".py", dir=PACKAGE) as file:
            file.write("from ovq_client import Client, aio\n"
                       "reveal_type(Client().score('a', top_logprobs=3))\n"
                       "reveal_type(Client().list_sessions)\n"
                       "Client().tokenize(5)\n"
                       "Client().generate('a', temprature=1)\n"
                       "async def f() -> None:\n"
                       "    reveal_type(await aio.AsyncClient().fork_session('x', 2))\n")
            file.flush()
            told = [line.split(":", 2)[1:] for line in self.mypy(file.name).splitlines() if ":" in line]
        for line, message in ((2, "types.Score"), (3, "Iterator[ovq_client.types.Session]"),
                              (4, 'incompatible type "int"'), (5, 'Unexpected keyword argument "temprature"'),
                              (7, "list[ovq_client.types.Session]")):
            self.assertTrue(any(place == str(line) and message in text for place, text in told),
                            (line, message, told))


class Syntax(unittest.TestCase):
    def test_every_module_is_python_3_9(self):
        for path in sorted((PACKAGE / "ovq_client").glob("*.py")):
            with self.subTest(path.name):
                tree = ast.parse(path.read_text(), feature_version=(3, 9))
                # With this import, annotations such as `int | None` are not evaluated.
                self.assertTrue(any(isinstance(node, ast.ImportFrom) and
                                    node.module == "__future__" for node in tree.body))
                for node in ast.walk(tree):
                    if isinstance(node, ast.ImportFrom) and node.module == "typing":
                        names = {alias.name for alias in node.names}
                        self.assertEqual(names & {"Unpack", "Self", "TypeAlias", "assert_never"},
                                         set())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest])
