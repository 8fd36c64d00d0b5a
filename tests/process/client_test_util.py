"""Shared by the client tests: a fake server, so that no model is needed."""

import atexit
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if importlib.util.find_spec("grpc") is None:
    print("SKIPPED: no module grpc; install python3-grpcio")
    sys.exit(0)

from fake_server import FakeServer, compile_proto

ROOT = Path(__file__).resolve().parents[2]
PYTHON = str(ROOT / "clients" / "python")
sys.path.insert(0, PYTHON)

from ovq_client import TokenChunk


@functools.lru_cache(maxsize=None)
def proto():
    """Returns the generated modules."""
    folder = tempfile.mkdtemp(prefix="ovq_proto_")
    atexit.register(shutil.rmtree, folder)
    return compile_proto(folder)


def text_of(events):
    return "".join(e.text for e in events if isinstance(e, TokenChunk))


def run_python_client(*arguments, stdin="", **environment):
    return subprocess.run(
        [sys.executable, "-m", "ovq_client", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PYTHON, **environment},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
    )


class WithServer(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer(*proto()).start()
        self.addCleanup(self.server.stop)
