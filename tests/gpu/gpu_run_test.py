"""run.sh and gpu_run.py on a machine made of fakes: shell scripts for nvidia-smi, the test programs,
the benchmark and compute-sanitizer.

usage: gpu_run_test.py [unittest arguments]
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

SMI = """echo "$*" >>"$FAKE_LOG"
fields=${1#--query-gpu=}
echo "$fields" | tr ',' '\\n' | sed 's/.*/value &/' | paste -sd, | sed 's/,/, /g'
"""

# A gtest program: suites A and B, one test each, of cuda unless FAKE_TEST names it. FAKE_FAIL names a failing suite, FAKE_CRASH one
# that ends the program, FAKE_SLOW one that never ends, FAKE_HANG a program that never begins.
GTEST = """name=$(basename "$0")
echo "$name $*" >>"$FAKE_LOG"
filter='*'; report=
for argument; do
  case "$argument" in
    --gtest_list_tests) printf 'A.\\n  one\\nB.\\n  one\\n'; exit 0 ;;
    --gtest_filter=*) filter=${argument#*=} ;;
    --gtest_output=json:*) report=${argument#*json:} ;;
  esac
done
[ "${FAKE_HANG:-}" != "$name" ] || sleep 600
suites=; code=0
for suite in A B; do
  case "$filter" in '*' | "$suite.*" | *Cuda*) ;; *) continue ;; esac
  echo "[ RUN      ] $suite.one_cuda"
  [ "${FAKE_CRASH:-}" != "$suite" ] || kill -ABRT $$
  [ "${FAKE_SLOW:-}" != "$suite" ] || sleep 600
  echo "[       OK ] $suite.one_cuda"
  failures=
  if [ "${FAKE_FAIL:-}" = "$suite" ]; then failures=', "failures": [{}]'; code=1; fi
  suites="$suites${suites:+,}{\\"name\\": \\"$suite\\", \\"testsuite\\": [
    {\\"name\\": \\"${FAKE_TEST:-one_cuda}\\", \\"result\\": \\"${FAKE_RESULT:-COMPLETED}\\", \\"status\\": \\"RUN\\"$failures}]}"
done
echo "{\\"testsuites\\": [$suites]}" >"$report"
exit $code
"""

BENCH = """echo "bench $*" >>"$FAKE_LOG"
cat >"$2" <<'JSON'
{"model": {"weight_bytes": 1000},
 "figures": [{"name": "decode", "sessions": 1, "seconds": 0.5, "measure": "times the byte floor",
              "value": 1.2, "target": 1.35, "met": true, "state_bytes_per_session": 100}]}
JSON
"""

SANITIZER = """echo "sanitizer $*" >>"$FAKE_LOG"
while [ "${1#/}" = "$1" ]; do shift; done
"$@"
"""


def write_program(path, text):
    with open(path, "w") as file:
        file.write("#!/bin/bash\n" + text)
    os.chmod(path, 0o755)


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_gpu_run_test_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.root = os.path.join(self.folder, "ovq-gpu")
        self.path = os.path.join(self.folder, "path")
        self.log = os.path.join(self.folder, "log")
        os.makedirs(os.path.join(self.root, "bin"))
        os.makedirs(os.path.join(self.root, "tests"))
        os.makedirs(self.path)
        shutil.copytree(HERE, os.path.join(self.root, "tests", "gpu"))
        with open(os.path.join(self.root, "tests", "gpu", "sdpa_baseline.py"), "w") as file:
            file.write("print('skipped: a fake')")
        with open(os.path.join(self.root, "manifest.json"), "w") as file:
            json.dump({"source_hash": "abc", "git_commit": "def", "git_dirty": False}, file)
        for name in ("kernels_tests", "model_tests"):
            write_program(os.path.join(self.root, "bin", name), GTEST)
        write_program(os.path.join(self.root, "bin", "bench_cuda"), BENCH)
        write_program(os.path.join(self.path, "nvidia-smi"), SMI)

    def run_script(self, *flags, **fakes):
        """(exit code, result, output, the fakes' calls)"""
        out = os.path.join(self.folder, "out")
        env = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}",
               "FAKE_LOG": self.log, "CUDA_HOME": "/nonexistent", **fakes}
        script = os.path.join(self.root, "tests", "gpu", "run.sh")
        ended = subprocess.run([script, *flags, "--out", out], env=env, capture_output=True, text=True,
                               timeout=120)
        text = ended.stdout + ended.stderr
        written = glob.glob(os.path.join(out, "*.json"))
        self.assertEqual(len(written), 1, text)
        with open(written[0]) as file:
            result = json.load(file)
        with open(self.log) as file:
            return ended.returncode, result, text, file.read().splitlines()

    def test_all_is_well(self):
        code, result, text, calls = self.run_script()
        self.assertEqual(code, 0, text)
        self.assertEqual(result["failures"], [])
        self.assertEqual((result["source_hash"], result["git_commit"]), ("abc", "def"))
        self.assertEqual(result["gpu"]["name"], "value name")
        self.assertEqual(result["clocks_after"]["clocks.sm"], "value clocks.sm")
        for name in ("kernels_tests", "model_tests"):
            self.assertEqual(result["tests"][name]["passed"], 2)
        self.assertEqual(result["bench"]["figures"][0]["value"], 1.2)
        self.assertIn("skipped", result["serve_check"])
        self.assertEqual(result["sdpa_baseline"], {"skipped": "skipped: a fake"})
        self.assertIn("skipped", result["sanitizers"])
        self.assertIn("met", text)
        self.assertIn("all passed", text)
        # Of the GPU's tool nothing but questions.
        for call in calls:
            if "--query" in call:
                self.assertRegex(call, r"^--query-gpu=[a-z_.,]+ --format=csv,noheader$")

    def test_a_failing_test_is_counted_and_nothing_is_timed(self):
        code, result, text, calls = self.run_script(FAKE_FAIL="B")
        self.assertEqual(code, 1, text)
        self.assertEqual(result["tests"]["kernels_tests"]["failed"], ["B.one_cuda"])
        self.assertEqual(result["tests"]["kernels_tests"]["passed"], 1)
        self.assertEqual(result["bench"], {"refused": "tests failed"})
        self.assertFalse([call for call in calls if call.startswith("bench")])

    def test_a_failing_build_can_be_timed_all_the_same(self):
        code, result, text, _ = self.run_script("--time-anyway", FAKE_FAIL="B")
        self.assertEqual(code, 1, text)
        self.assertTrue(result["bench"]["of_a_failing_build"])
        self.assertEqual(len(result["bench"]["figures"]), 1)

    def test_a_crash_hides_only_its_own_suite(self):
        code, result, text, _ = self.run_script(FAKE_CRASH="A")
        self.assertEqual(code, 1, text)
        counts = result["tests"]["kernels_tests"]
        self.assertEqual(counts["ended"], "signal 6")
        self.assertEqual(counts["failed"], ["A.one_cuda"])
        self.assertEqual(counts["passed"], 1)

    def test_a_hang_costs_what_is_left_and_a_result_is_written(self):
        begin = time.monotonic()
        code, result, text, _ = self.run_script("--budget", "5", FAKE_HANG="model_tests")
        self.assertEqual(code, 1, text)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(result["tests"]["kernels_tests"]["passed"], 2)
        self.assertEqual(result["tests"]["model_tests"]["ended"], "time limit")

    def test_a_test_that_hangs_hides_no_other(self):
        script = os.path.join(self.root, "tests", "gpu", "gpu_run.py")
        with open(script) as file:
            text = file.read()
        with open(script, "w") as file:
            file.write(re.sub(r"TEST_SECONDS = \d+", "TEST_SECONDS = 1", text))
        code, result, text, _ = self.run_script(FAKE_SLOW="A")
        self.assertEqual(code, 1, text)
        counts = result["tests"]["kernels_tests"]
        self.assertEqual((counts["ended"], counts["failed"], counts["passed"]),
                         ("no output", ["A.one_cuda"], 1))

    def test_a_program_that_is_stopped_has_counts(self):
        code, result, text, _ = self.run_script("--budget", "3", FAKE_SLOW="B")
        self.assertEqual(code, 1, text)
        counts = result["tests"]["kernels_tests"]
        self.assertEqual((counts["ended"], counts["passed"], counts["last_begun"]),
                         ("time limit", 1, "B.one_cuda"))

    def test_skipped_or_missing_tests_of_cuda_are_failures(self):
        code, result, text, _ = self.run_script(FAKE_RESULT="SKIPPED")
        self.assertEqual(code, 1, text)
        self.assertIn("kernels_tests: 2 tests of cuda were skipped", result["failures"])
        shutil.rmtree(os.path.join(self.folder, "out"))
        code, result, text, _ = self.run_script(FAKE_TEST="one")
        self.assertEqual((code, result["failures"]), (1, ["no test of cuda passed"]), text)

    def test_no_gpu_is_a_failure(self):
        write_program(os.path.join(self.path, "nvidia-smi"), "echo 'No devices were found'; exit 6")
        with open(self.log, "w"):
            pass
        code, result, text, calls = self.run_script()
        self.assertEqual(code, 1, text)
        self.assertEqual(result["failures"], ["nvidia-smi shows no GPU"])
        self.assertEqual(calls, [])

    def test_sanitizers_run_and_fail(self):
        write_program(os.path.join(self.path, "compute-sanitizer"), SANITIZER)
        code, result, text, calls = self.run_script()
        self.assertEqual(code, 0, text)
        self.assertEqual(list(result["sanitizers"]),
                         ["memcheck", "racecheck", "initcheck", "synccheck"])
        self.assertEqual(len([call for call in calls if call.startswith("sanitizer --tool")]), 4)
        shutil.rmtree(os.path.join(self.folder, "out"))
        write_program(os.path.join(self.path, "compute-sanitizer"), "exit 86")
        code, result, text, _ = self.run_script()
        self.assertEqual(code, 1, text)
        self.assertIn("compute-sanitizer memcheck: exit 86", result["failures"])

    def test_a_bundle_is_unpacked(self):
        bundle = os.path.join(self.folder, "ovq-gpu.tar.xz")
        with tarfile.open(bundle, "w:xz") as archive:
            archive.add(self.root, "ovq-gpu")
        os.remove(os.path.join(self.root, "manifest.json"))
        shutil.rmtree(os.path.join(self.root, "bin"))
        code, result, text, _ = self.run_script(bundle)
        self.assertEqual(code, 0, text)
        self.assertEqual(result["source_hash"], "abc")
        kept = glob.glob(os.path.join(self.root, "docs", "gpu-results", "*.json"))
        self.assertEqual(len(kept), 1)


class Compare(unittest.TestCase):
    def test_against_a_cache(self):
        sys.path.insert(0, HERE)
        from gpu_run import GpuRun

        gpu_run = GpuRun(self.id(), None, 10)
        self.addCleanup(gpu_run.close)
        gpu_run.result["bench"] = {
            "model": {"weight_bytes": 100},
            "figures": [{"name": "decode", "sessions": 4, "seconds": 0.5,
                         "state_bytes_per_session": 10}]}
        gpu_run.compare({"memory_bytes": 1100, "figures": [
            {"context": 64, "sessions": 4, "seconds": 2.0, "weight_bytes": 100,
             "kv_bytes_per_session": 50},
            {"context": 64, "sessions": 5, "seconds": 2.0, "weight_bytes": 100,
             "kv_bytes_per_session": 50}]})
        self.assertEqual(gpu_run.result["against_kv_cache"], [
            {"context": 64, "sessions": 4, "tokens_per_s_ratio": 4.0, "sessions_that_fit": 100,
             "sessions_that_fit_kv": 20, "sessions_ratio": 5.0}])


if __name__ == "__main__":
    unittest.main(verbosity=2)
