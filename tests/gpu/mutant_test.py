"""Checks that the negative control fails its tests, and only those of the kernel with the mistake.

usage: mutant_test.py PROGRAM
"""

import re
import subprocess
import sys
import unittest

PROGRAM = None


class Mutant(unittest.TestCase):
    def test_tensor_cores_fail_and_float32_does_not(self):
        ended = subprocess.run([PROGRAM, "--gtest_filter=*/AttendTest.*:*AttendTies.*"], capture_output=True, text=True)
        failed = set(re.findall(r"^\[  FAILED  \] (\S+?),", ended.stdout, flags=re.MULTILINE))
        self.assertEqual(ended.returncode, 1, ended.stdout[-2000:] + ended.stderr[-2000:])
        self.assertTrue(any(name.startswith("TensorCores/AttendTest") for name in failed), failed)
        self.assertFalse([name for name in failed if name.startswith("Float32/")])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
