"""Checks statements in the documentation about docs/gpu-results/*.json and that the newest file is complete;
prints whether that file belongs to the current sources or is stale. Also tests source_hash.sh on copies of its
input.

usage: gpu_results_test.py [unittest arguments]
"""

import glob
import json
import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCRIPT = os.path.join(HERE, "source_hash.sh")


def source_hash(root, *flags):
    return subprocess.run([SCRIPT, *flags, root], check=True, capture_output=True,
                          text=True).stdout.strip()


def newest_result(folder, present_hash):
    """One line on the newest result file of a folder, or None where there is no file."""
    files = sorted(glob.glob(os.path.join(folder, "*.json")))
    if not files:
        return None
    name = os.path.basename(files[-1])
    with open(files[-1]) as file:
        result = json.load(file)
    missing = sorted({"date", "source_hash", "gpu", "tests", "failures"} - set(result))
    if missing:
        raise ValueError(f"{name}: without {', '.join(missing)}")
    if result["source_hash"] == present_hash:
        return f"{name} ({result['date']}) is of the present sources"
    return f"{name} ({result['date']}) is stale: of other sources than the present ones"


class NewestResult(unittest.TestCase):
    def test_documents_say_whether_there_is_one(self):
        line = newest_result(os.path.join(ROOT, "docs", "gpu-results"), source_hash(ROOT))
        print(line or "no GPU result yet")
        for path, words in (("docs/gpu-results/README.md", "There is none yet."),
                            ("docs/cuda.md", "**Measured so far: nothing.**"),
                            ("README.md", "no run on a GPU is recorded yet")):
            with open(os.path.join(ROOT, path)) as file:
                text = " ".join(file.read().split())
            self.assertEqual(words in text, line is None, f"{path}: {words}")
        with open(os.path.join(ROOT, "docs", "cuda.md")) as file:
            text = " ".join(file.read().split())
        self.assertEqual("Kernels have changed since that run:" in text, bool(line and "is stale" in line),
                         "docs/cuda.md says which kernels have not run on a GPU since they changed")


class ReadingResults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_gpu_results_")
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, **changes):
        result = {"date": name, "source_hash": "new", "gpu": {}, "tests": {}, "failures": []}
        with open(os.path.join(self.folder, f"{name}.json"), "w") as file:
            json.dump({key: value for key, value in {**result, **changes}.items()
                       if value is not None}, file)

    def test_the_newest_counts(self):
        self.assertIsNone(newest_result(self.folder, "new"))
        self.write("2026-01-02", source_hash="old")
        self.assertEqual(newest_result(self.folder, "new"),
                         "2026-01-02.json (2026-01-02) is stale: of other sources than the present ones")
        self.write("2026-01-03")
        self.write("2025-12-31", source_hash="old")
        self.assertEqual(newest_result(self.folder, "new"),
                         "2026-01-03.json (2026-01-03) is of the present sources")

    def test_a_result_with_less_than_it_must_have_is_an_error(self):
        self.write("2026-01-02", gpu=None)
        with self.assertRaisesRegex(ValueError, "2026-01-02.json: without gpu"):
            newest_result(self.folder, "new")


class SourceHash(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_source_hash_")
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("kernels", "base", "model", "tests/bench"):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(self.folder, name))
        self.before = source_hash(self.folder)

    def append(self, path):
        with open(os.path.join(self.folder, path), "a") as file:
            file.write("// changed\n")

    def changes(self):
        return source_hash(self.folder) != self.before

    def test_a_copy_has_the_same_hash(self):
        self.assertRegex(self.before, r"^[0-9a-f]{64}$")
        self.assertEqual(self.before, source_hash(ROOT))

    def test_listed_files_count(self):
        listed = source_hash(self.folder, "--list").splitlines()
        for part in ("kernels/common/cuda/ptx.cuh", "kernels/common/cuda/cuda_device.cu",
                     "kernels/common/tensor.h", "kernels/ops/matmul.cc", "base/check.cc",
                     "model/language_model.cc", "model/logits_reader.cc", "tests/bench/bench_cuda.cc"):
            self.assertIn(part, listed)
        for path in listed[::6]:
            whole = os.path.join(self.folder, path)
            shutil.copy(whole, whole + ".kept")
            self.append(path)
            self.assertTrue(self.changes(), path)
            shutil.move(whole + ".kept", whole)
        self.assertFalse(self.changes())

    def test_new_and_renamed_kernels_count(self):
        common = os.path.join(self.folder, "kernels", "common", "cuda")
        shutil.move(os.path.join(common, "ptx.cuh"), os.path.join(common, "other.cuh"))
        renamed = source_hash(self.folder)
        self.assertNotEqual(renamed, self.before)
        self.append("kernels/common/cuda/new.cu")
        self.assertNotIn(source_hash(self.folder), (self.before, renamed))

    def test_what_runs_on_no_gpu_does_not_count(self):
        for path in ("kernels/ops/matmul_simd_cpu.cc", "kernels/mixers/ovq/ovq_cpu.cc",
                     "kernels/mixers/README.md", "base/out_of_memory.cc", "model/chat_template/lexer.cc",
                     "tests/bench/bench_sessions.cc"):
            self.append(path)
        self.assertFalse(self.changes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
