"""Runs protoc to get the descriptors of ovq.v1. Imports only the standard library."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = "ovq/v1/inference.proto"


def compile_descriptors(root: Path) -> bytes:
    """Returns the serialized FileDescriptorSet of the proto below the folder `root`."""
    protoc = shutil.which("protoc")
    command = [protoc] if protoc else [sys.executable, "-m", "grpc_tools.protoc"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        includes = [f"-I{root}"]
        if not protoc:
            from importlib.resources import files

            includes.append(f"-I{files('grpc_tools') / '_proto'}")
        run = subprocess.run(
            [*command, *includes, f"--descriptor_set_out={out}", FILE],
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            raise ImportError(
                "compiling the proto failed (needs protoc: package protobuf-compiler): "
                + run.stderr.strip()
            )
        return out.read_bytes()
