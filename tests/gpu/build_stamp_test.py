"""Tests build_stamp.cmake in a project of its own: a program's build stamp changes with its sources and its
flags, and with nothing else.

usage: build_stamp_test.py [unittest arguments]
"""

import os
import shutil
import subprocess
import tempfile
import unittest

from gpu_run import built_from

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(stamped LANGUAGES CXX)
include("%s/build_stamp.cmake")
ovq_build_stamp(stamp "${PROJECT_SOURCE_DIR}")
add_executable(program main.cc)
target_link_libraries(program PRIVATE stamp)
"""
SOURCES = {
    "main.cc": "int main() { return 0; }\n",
    "kernels/ops/product.cu": '#include "kernels/ops/product.h"\n',
    "kernels/ops/product.h": "int Product();\n",
    "model/language_model.cc": '#include "model/step.h"\n',
    "model/step.h": "struct Step {};\n",
    "base/unused.h": "// included by nothing\n",
    "tests/bench/bench_cuda.cc": "// measures\n",
}


class BuildStamp(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_build_stamp_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("CMakeLists.txt", PROJECT % HERE)
        for path, text in SOURCES.items():
            self.write(path, text)

    def write(self, path, text):
        whole = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "w") as file:
            file.write(text)

    def configure(self, build, *flags):
        self.call("cmake", "-G", "Ninja", "-S", self.folder, "-B", os.path.join(self.folder, build),
                  "-DCMAKE_BUILD_TYPE=Release", *flags)

    def call(self, *command):
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    def build(self, build="build"):
        """Builds; returns the program's build stamp, and whether anything was built."""
        text = self.call("cmake", "--build", os.path.join(self.folder, build))
        return built_from(os.path.join(self.folder, build, "program")), "no work to do" not in text

    def test_it_follows_sources_and_flags(self):
        self.configure("build")
        first, _ = self.build()
        self.assertRegex(first["source_hash"], "^[0-9a-f]{64}$")
        self.assertIn("-O3", first["flags"])
        self.assertEqual(self.build(), (first, False))
        for path in ("kernels/ops/product.cu", "kernels/ops/product.h", "model/step.h",
                     "tests/bench/bench_cuda.cc"):
            self.write(path, SOURCES[path] + "// changed\n")
            changed, _ = self.build()
            self.assertNotEqual(changed["source_hash"], first["source_hash"], path)
            self.assertEqual(changed["flags_hash"], first["flags_hash"])
            self.write(path, SOURCES[path])
            self.assertEqual(self.build()[0], first, path)
        self.write("base/unused.h", "// still included by nothing\n")
        self.assertEqual(self.build()[0], first)
        self.write("kernels/ops/new.cu", "\n")
        self.assertNotEqual(self.build()[0]["source_hash"], first["source_hash"])

    def test_another_folder_is_the_same_and_other_flags_are_not(self):
        self.configure("one")
        self.configure("two")
        self.configure("three", "-DCMAKE_CXX_FLAGS=-DOTHER=\"a\\ b\"")
        one, two, three = (self.build(name)[0] for name in ("one", "two", "three"))
        self.assertEqual(one, two)
        self.assertEqual(one["source_hash"], three["source_hash"])
        self.assertNotEqual(one["flags_hash"], three["flags_hash"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
