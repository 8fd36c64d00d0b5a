"""Adds the proto's descriptors to the built package; pyproject.toml has the rest.

In the repository protoc makes the descriptors. An sdist contains them already, so that a wheel
built from it needs no protoc."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PROTO = Path(__file__).resolve().parents[2] / "proto"


def write_descriptors(root):
    if not PROTO.is_dir():
        return  # in an sdist they are package files
    target = Path(root) / "ovq_client" / "descriptors.pb"
    target.unlink(missing_ok=True)  # it may be a hard link to another file
    command = ["protoc", f"-I{PROTO}", f"--descriptor_set_out={target}", "ovq/v1/inference.proto"]
    subprocess.run(command, check=True)


class BuildPy(build_py):
    def run(self):
        super().run()
        write_descriptors(self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_descriptors(base_dir)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
