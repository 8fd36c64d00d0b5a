"""Adds the proto's descriptors to the built package; pyproject.toml has the rest.

In the repository protoc makes the descriptors. An sdist contains them already, so that a wheel
built from it needs no protoc."""

import importlib.util
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"
PACKED = Path("ovq_client") / "descriptors.pb"


def write_descriptors(root):
    if not PROTO.is_dir():
        return  # in an sdist they are package files
    # Loads this file alone, because importing the package requires grpcio.
    spec = importlib.util.spec_from_file_location(
        "_ovq_descriptors", HERE / "ovq_client" / "_descriptors.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = Path(root) / PACKED
    target.unlink(missing_ok=True)  # it may be a hard link to another file
    target.write_bytes(module.compile_descriptors(PROTO))


class BuildPy(build_py):
    def run(self):
        super().run()
        write_descriptors(self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_descriptors(base_dir)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
