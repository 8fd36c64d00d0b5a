"""Whether the newest docs/gpu-results/*.json belongs to the present kernels; passes either way.
Also tests source_hash.sh on copies of kernels/.

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


class NewestResult(unittest.TestCase):
    def test_compare_with_the_present_sources(self):
        files = sorted(glob.glob(os.path.join(ROOT, "docs", "gpu-results", "*.json")))
        if not files:
            print("no GPU result yet")
            return
        with open(files[-1]) as file:
            result = json.load(file)
        name = os.path.relpath(files[-1], ROOT)
        for field in ("date", "source_hash", "gpu", "tests", "failures"):
            self.assertIn(field, result, name)
        if result["source_hash"] == source_hash(ROOT):
            print(f"{name} is of the present kernels")
        else:
            print(f"{name} ({result['date']}) is of other kernels than the present ones")


class SourceHash(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_source_hash_")
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(os.path.join(ROOT, "kernels"), os.path.join(self.folder, "kernels"))
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
                     "kernels/common/tensor.h", "kernels/ops/matmul.cc"):
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

    def test_other_devices_do_not_count(self):
        for path in ("kernels/ops/matmul_simd_cpu.cc", "kernels/mixers/ovq/ovq_cpu.cc",
                     "kernels/mixers/README.md"):
            self.append(path)
        self.assertFalse(self.changes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
