"""Tests run.sh and gpu_run.py on a fake machine: shell scripts for nvidia-smi, the test programs,
the benchmark and compute-sanitizer.

usage: gpu_run_test.py [unittest arguments]
"""

import fnmatch
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

UNLOGGED_SMI = """fields=${1#--query-gpu=}
echo "$fields" | tr ',' '\\n' | sed 's/.*/value &/' | paste -sd, | sed 's/,/, /g'
"""
SMI = """echo "$*" >>"$FAKE_LOG"
""" + UNLOGGED_SMI

# Build stamp that a program of the build prints.
STAMP = """# ovq-build: {"source_hash": "abc", "flags_hash": "ef", "flags": "-O3"}
"""

# A gtest program: suites A, B and C of one test each. FAKE_FAIL names a failing suite, FAKE_SKIP a skipped one,
# FAKE_CRASH one that ends the program, FAKE_SLOW one that never ends, FAKE_HANG a program that never begins.
GTEST = STAMP + """name=$(basename "$0")
filter=
for argument; do
  case "$argument" in
    --gtest_list_tests) printf 'A.\\n  one_cuda\\nB.\\n  one_cuda\\nC.  # TypeParam = int\\n  one_cuda  # GetParam() = 1\\n'; exit 0 ;;
    --gtest_filter=*) filter=${argument#*=} ;;
  esac
done
echo "$name $* blocking ${CUDA_LAUNCH_BLOCKING:-0}" >>"$FAKE_LOG"
[ "${FAKE_HANG:-}" != "$name" ] || sleep 600
[ -z "${CUDA_LAUNCH_BLOCKING:-}" ] || [ -z "${FAKE_RACE:-}" ] || FAKE_FAIL=
code=0
for suite in A B C; do
  case ":$filter:" in *":$suite.one_cuda:"*) ;; *) continue ;; esac
  echo "[ RUN      ] $suite.one_cuda"
  [ "${FAKE_CRASH:-}" != "$suite" ] || kill -ABRT $$
  [ "${FAKE_SLOW:-}" != "$suite" ] || sleep 600
  if [ "${FAKE_FAIL:-}" = "$suite" ]; then
    echo "[  FAILED  ] $suite.one_cuda, where GetParam() = 1 (5 ms)"; code=1
  elif [ "${FAKE_SKIP:-}" = "$suite" ]; then
    echo "${FAKE_REASON-device 'cuda': expected a GPU}"
    echo "[  SKIPPED ] $suite.one_cuda (0 ms)"
  else
    echo "[       OK ] $suite.one_cuda (5 ms)"
  fi
done
[ $code = 0 ] || echo "[  FAILED  ] 1 test, listed below:"
exit $code
"""

# FAKE_DIFFER: whole prompts and single steps differ.
BENCH = STAMP + """echo "bench $*" >>"$FAKE_LOG"
[ -z "${FAKE_DIFFER:-}" ] || differing='"differing_bits": {"tokens": 3, "first": 7},'
cat >"$2" <<JSON
{"model": {"weight_bytes": 1000}, ${differing:-}
 "figures": [{"name": "decode", "sessions": 1, "seconds": 0.5, "wall_seconds": 0.6, "measure": "times the byte floor",
              "value": 1.2, "target": 1.35, "met": true, "state_bytes_per_session": 100}]}
JSON
exit ${FAKE_DIFFER:-0}
"""

SERVE_LOAD = """import json, sys
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump({"rows": [{"users": 1, "first_token_mean_ms": 20.0, "gap_mean_ms": 1.5, "output_tokens_per_s": 600.0,
                         "iterations": {"decode": {"step_duration_seconds": {"mean": 0.75}}}}]}, file)
"""

NCU = """echo "ncu $*" >>"$FAKE_LOG"
echo 'Tesla: copy 3000 GB/s'
echo '==PROF== Connected to process 7'
[ -n "${FAKE_NO_TABLE:-}" ] || cat <<'CSV'
"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum","launch__grid_size","launch__block_size","launch__registers_per_thread","dram__throughput.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","ns","byte","byte","","","register/thread","%","%","%"
"0","7","void ovq::kernels::cuda::(anonymous namespace)::AttendDecodeKernel<(int)2, ovq::kernels::BF16>(ovq::X, int)","1,500","3,000,000","0","10","128","26","0.11","0.03","12.12"
"1","7","RmsNormKernel(int)","3680","12032","0","1","256","30","0.10","0.05","11.12"
CSV
"""

# FAKE_FINDINGS: what its summary counts.
SANITIZER = """echo "sanitizer $* products ${OVQ_CUDA_PRODUCTS:-}" >>"$FAKE_LOG"
[ "$1" != --version ] || exit ${FAKE_PROBE:-0}
[ -z "${FAKE_FINDINGS:-}" ] || echo "========= ERROR SUMMARY: $FAKE_FINDINGS errors"
while [ "${1#/}" = "$1" ]; do shift; done
"$@"
"""


DRIVER = """#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int i) { *device = i; return 0; }
int cuDeviceGetName(char* name, int length, int device) { strncpy(name, "a fake GPU", length); return 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int device) { *bytes = 1000; return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
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
        with open(os.path.join(self.root, "tests", "gpu", "serve_load.py"), "w") as file:
            file.write(SERVE_LOAD)
        for name in ("kernels_tests", "model_tests"):
            write_program(os.path.join(self.root, "bin", name), GTEST)
        write_program(os.path.join(self.root, "bin", "ovq-load"), "")
        write_program(os.path.join(self.root, "bin", "attend_mutant"), "FAKE_FAIL=${FAKE_MUTANT-A}\n" + GTEST)
        write_program(os.path.join(self.root, "bin", "bench_cuda"), BENCH)
        write_program(os.path.join(self.path, "nvidia-smi"), SMI)

    def run_script(self, *flags, **fakes):
        """(exit code, result, output, the fakes' calls)"""
        out = os.path.join(self.folder, "out")
        env = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}",
               "TMPDIR": self.folder, "FAKE_LOG": self.log, "CUDA_HOME": "/nonexistent", **fakes}
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
        self.assertEqual(result["loopback"], "up")
        self.assertEqual(result["clocks_after"]["clocks.sm"], "value clocks.sm")
        for name in ("kernels_tests", "model_tests"):
            self.assertEqual(result["tests"][name]["passed"], 3)
        for bench, states in (("bench", "bf16"), ("bench_int8", "i8")):
            self.assertEqual(result[bench]["figures"][0]["value"], 1.2)
            self.assertEqual(sum(call.startswith("bench ") and f" --state-dtype {states} " in call
                                 for call in calls), 1)
        self.assertIn("int8 decode", text)
        self.assertIn("skipped", result["serve_check"])
        self.assertEqual(result["sdpa_baseline"], {"skipped": "skipped: a fake"})
        self.assertIn("skipped", result["ncu"])
        self.assertIn("skipped", result["sanitizers"])
        self.assertEqual(list(result["stage_seconds"]),
                         ["tests", "bench", "serve", "load", "sdpa", "ncu", "bench_int8", "sanitizers"])
        self.assertIn("met", text)
        self.assertIn("all passed", text)
        # nvidia-smi is only queried, never used to change settings.
        for call in calls:
            if "--query" in call:
                self.assertRegex(call, r"^--query-gpu=[a-z_.,]+ --format=csv,noheader$")

    def test_stages_may_be_chosen(self):
        _, result, text, _ = self.run_script("--only", "bench,load", "--skip", "load")
        self.assertEqual(list(result["stage_seconds"]), ["bench"], text)
        script = os.path.join(self.root, "tests", "gpu", "run.sh")
        ended = subprocess.run([script, "--only", "bench,nothing"], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("got 'bench,nothing'", ended.stderr)

    def test_the_load_says_what_the_host_adds_to_a_decode_batch(self):
        code, result, text, calls = self.run_script("--only", "load")
        self.assertEqual(code, 0, text)
        row = result["load"]["rows"][0]
        self.assertEqual(row["host_seconds_of_a_decode_iteration"], 0.25)
        self.assertEqual(row["decode_batch_alone"], {"seconds": 0.5, "wall_seconds": 0.6})
        self.assertTrue(any("--only decode --sessions 1,64,256 --position 576" in call for call in calls), calls)
        self.assertIn("600 tokens/s", text)

    def test_an_error_of_one_stage_is_a_failure_and_the_others_run(self):
        with open(os.path.join(self.root, "tests", "gpu", "serve_load.py"), "w") as file:
            file.write("import json, sys\njson.dump({'rows': [{}]}, open(sys.argv[sys.argv.index('--json') + 1], 'w'))")
        code, result, text, _ = self.run_script("--only", "load,bench_int8")
        self.assertEqual(code, 1, text)
        self.assertRegex(result["failures"][0], "(?s)load: .*KeyError")
        self.assertEqual(result["bench_int8"]["ended"], "exit 0")
        self.assertTrue(result["finished"])

    def test_tables_of_every_kernel(self):
        write_program(os.path.join(self.path, "ncu"), NCU)
        code, result, text, calls = self.run_script("--only", "ncu")
        self.assertEqual(code, 0, text)
        self.assertEqual(list(result["ncu"]), ["decode-1", "decode-64", "prefill"])
        self.assertEqual(result["ncu"]["prefill"]["sums"], {
            "RmsNormKernel": {"launches": 1, "microseconds": 3.7, "bytes": 12032, "gigabytes_per_s": 3},
            "AttendDecodeKernel<2, BF16>": {"launches": 1, "microseconds": 1.5, "bytes": 3000000,
                                            "gigabytes_per_s": 2000}})
        for call in calls:
            if call.startswith("ncu"):
                self.assertRegex(call, "--clock-control none --cache-control none --launch-count [0-9]+ .*bench_cuda "
                                       ".*--profile")
        tables = glob.glob(os.path.join(self.folder, "out", "*-decode-64.csv"))
        self.assertEqual(len(tables), 1)
        with open(tables[0]) as file:
            self.assertEqual(file.read().split(), [
                "kernel,nanoseconds,bytes_read,bytes_written,blocks,threads,registers,dram_percent,sm_percent,"
                "warps_active_percent", '"AttendDecodeKernel<2,', 'BF16>",1500,3000000,0,10,128,26,0.11,0.03,12.12',
                "RmsNormKernel,3680,12032,0,1,256,30,0.1,0.05,11.12"])

    def test_no_table_is_a_failure(self):
        write_program(os.path.join(self.path, "ncu"), NCU)
        code, result, text, _ = self.run_script("--only", "ncu", FAKE_NO_TABLE="1")
        self.assertEqual((code, len(result["failures"])), (1, 3), text)
        self.assertIn("ncu decode-1: exit 0: ", result["failures"][0])

    def test_a_result_says_what_its_programs_were_built_from(self):
        _, result, text, _ = self.run_script()
        self.assertEqual(result["source_hash"], "abc", text)
        self.assertEqual(result["build"], {"source_hash": "abc", "flags_hash": "ef", "flags": "-O3"})
        for stamp, failure in (
                ("", "model_tests does not say what it was built from"),
                (STAMP.replace("abc", "def"), "model_tests was built from other sources, or otherwise, "
                                              "than kernels_tests"),
                (STAMP.replace("-O3", "-O0"), "model_tests was built from other sources, or otherwise, "
                                              "than kernels_tests")):
            write_program(os.path.join(self.root, "bin", "model_tests"), GTEST.replace(STAMP, stamp))
            shutil.rmtree(os.path.join(self.folder, "out"))
            code, result, text, _ = self.run_script()
            self.assertEqual((code, result["failures"]), (1, [failure]), text)

    def test_programs_of_other_sources_than_those_beside_them_are_a_failure(self):
        with open(os.path.join(self.root, "manifest.json"), "w") as file:
            json.dump({"source_hash": "other", "git_commit": "def", "git_dirty": False}, file)
        code, result, text, _ = self.run_script()
        self.assertEqual((code, result["source_hash"]), (1, "abc"), text)
        self.assertEqual(result["failures"],
                         ["the programs were built from other sources than those beside them"])

    def test_a_failing_test_is_counted_and_run_again_and_all_else_is_measured(self):
        code, result, text, calls = self.run_script(FAKE_FAIL="B")
        self.assertEqual(code, 1, text)
        counts = result["tests"]["kernels_tests"]
        self.assertEqual((counts["failed"], counts["passed"]), (["B.one_cuda"], 2))
        self.assertEqual(counts["launch_blocking"]["failed"], ["B.one_cuda"])
        self.assertIn("kernels_tests --gtest_filter=B.one_cuda blocking 1", calls)
        self.assertEqual(result["failures"], [f"{name}: 1 tests failed: B.one_cuda"
                                              for name in ("kernels_tests", "model_tests")])
        self.assertEqual(len(result["bench"]["figures"]), 1)

    def test_differing_bits_are_a_failure_and_all_else_is_measured(self):
        code, result, text, _ = self.run_script("--only", "bench", FAKE_DIFFER="1")
        self.assertEqual(code, 1, text)
        self.assertEqual(result["failures"], ["bench_cuda, states in bf16: whole prompt and single steps differ: "
                                              "{'tokens': 3, 'first': 7}"])
        self.assertEqual(len(result["bench"]["figures"]), 1)

    def test_a_failure_that_goes_away_where_launches_block_is_still_one(self):
        code, result, text, _ = self.run_script("--only", "tests", FAKE_FAIL="B", FAKE_RACE="1")
        self.assertEqual(code, 1, text)
        again = result["tests"]["kernels_tests"]["launch_blocking"]
        self.assertEqual((again["failed"], again["passed"]), ([], ["B.one_cuda"]))

    def test_a_negative_control_that_passes_is_a_failure(self):
        code, result, text, _ = self.run_script("--only", "tests")
        self.assertEqual(result["negative_control"]["failed"], ["A.one_cuda"])
        shutil.rmtree(os.path.join(self.folder, "out"))
        code, result, text, _ = self.run_script("--only", "tests", FAKE_MUTANT="")
        self.assertEqual(code, 1, text)
        self.assertEqual(result["failures"], ["attend_mutant: [], 0 failed, which it should"])

    def test_a_program_that_hangs_costs_what_is_left_and_a_result_is_written(self):
        begin = time.monotonic()
        code, result, text, _ = self.run_script("--only", "tests", "--budget", "5", FAKE_HANG="model_tests")
        self.assertEqual(code, 1, text)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(result["tests"]["kernels_tests"]["passed"], 3)
        counts = result["tests"]["model_tests"]
        self.assertEqual((set(counts["ended"]), sorted(counts["not_run"])),
                         ({"time limit in None"}, ["A.one_cuda", "B.one_cuda", "C.one_cuda"]))

    def test_skipped_or_missing_tests_of_cuda_are_failures(self):
        code, result, text, _ = self.run_script("--only", "tests", FAKE_SKIP="C")
        self.assertEqual(code, 1, text)
        self.assertIn("kernels_tests: 1 tests were skipped: C.one_cuda", result["failures"])
        shutil.rmtree(os.path.join(self.folder, "out"))
        code, result, text, _ = self.run_script("--only", "tests", FAKE_SKIP="C", FAKE_REASON="not for this layer")
        self.assertEqual((code, result["failures"]), (0, []), text)
        self.assertEqual(result["tests"]["kernels_tests"]["inapplicable"], ["C.one_cuda"])
        shutil.rmtree(os.path.join(self.folder, "out"))
        write_program(os.path.join(self.root, "bin", "model_tests"), STAMP)
        code, result, text, _ = self.run_script("--only", "tests")
        self.assertEqual((code, result["failures"]), (1, ["model_tests: no test of cuda passed"]), text)

    def test_no_gpu_is_a_failure(self):
        write_program(os.path.join(self.path, "nvidia-smi"), "echo 'No devices were found'; exit 6")
        with open(self.log, "w"):
            pass
        code, result, text, calls = self.run_script()
        self.assertEqual(code, 1, text)
        self.assertEqual(result["failures"], ["neither nvidia-smi nor the driver shows a GPU"])
        self.assertEqual(calls, [])

    @unittest.skipIf(shutil.which("cc") is None, "no C compiler for a fake driver")
    def test_without_nvidia_smi_the_driver_is_asked(self):
        write_program(os.path.join(self.path, "nvidia-smi"), "exit 9")
        source = os.path.join(self.folder, "driver.c")
        with open(source, "w") as file:
            file.write(DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", os.path.join(self.path, "libcuda.so.1"), source],
                       check=True)
        code, result, text, _ = self.run_script(LD_LIBRARY_PATH=self.path)
        self.assertEqual(code, 0, text)
        self.assertEqual(result["gpu"], {"name": "a fake GPU", "driver_version": "CUDA 13000",
                                         "memory.total": "1000 bytes"})
        self.assertEqual(result["bench"]["clocks"], [])

    def test_clocks_are_sampled_while_it_is_timed(self):
        _, result, text, _ = self.run_script("--only", "bench")
        samples = result["bench"]["clocks"]
        self.assertGreater(len(samples), 0, text)
        self.assertEqual(samples[0]["clocks_event_reasons.active"], "value clocks_event_reasons.active")

    def test_a_run_that_is_ended_leaves_what_it_had(self):
        # A query that outlives the killed run must not write into the folder while it is removed.
        write_program(os.path.join(self.path, "nvidia-smi"), UNLOGGED_SMI)
        write_program(os.path.join(self.root, "bin", "bench_cuda"), STAMP + "kill -KILL $PPID")
        _, result, text, _ = self.run_script()
        self.assertFalse(result["finished"])
        self.assertEqual(result["tests"]["model_tests"]["passed"], 3)

    def test_sanitizers_run_and_their_output_counts(self):
        write_program(os.path.join(self.path, "compute-sanitizer"), SANITIZER)
        code, result, text, calls = self.run_script("--only", "sanitizers", FAKE_FINDINGS="0")
        self.assertEqual(code, 0, text)
        self.assertEqual(sorted(result["sanitizers"]),
                         sorted(f"{tool} {name}" for tool in ("memcheck", "racecheck", "initcheck", "synccheck")
                          for name in ("kernels_tests", "model_tests")))
        runs = [call for call in calls if call.startswith("sanitizer --tool")]
        self.assertEqual(len(runs), 8)
        self.assertTrue(all(call.endswith("products own") for call in runs), runs)
        self.assertEqual(result["sanitizers"]["racecheck model_tests"]["passed"], 3)
        shutil.rmtree(os.path.join(self.folder, "out"))
        code, result, text, _ = self.run_script("--only", "sanitizers", FAKE_FINDINGS="3")
        self.assertEqual(code, 1, text)
        self.assertIn("compute-sanitizer memcheck kernels_tests: ========= ERROR SUMMARY: 3 errors",
                      result["failures"])

    def test_a_sanitizer_that_says_nothing_or_does_not_run(self):
        write_program(os.path.join(self.path, "compute-sanitizer"), SANITIZER)
        code, result, text, _ = self.run_script("--only", "sanitizers")
        self.assertEqual(code, 1, text)
        self.assertIn("compute-sanitizer memcheck kernels_tests: no summary in its output",
                      result["failures"])
        shutil.rmtree(os.path.join(self.folder, "out"))
        code, result, text, _ = self.run_script("--only", "sanitizers", FAKE_PROBE="127")
        self.assertEqual(code, 0, text)
        self.assertIn("does not run: exit 127", result["sanitizers"])

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


class Filters(unittest.TestCase):
    """The tests that a run and its sanitizers choose by name."""

    def setUp(self):
        sys.path.insert(0, HERE)
        import gpu_run

        self.gpu_run = gpu_run

    def written(self, pattern):
        """The full names of the tests in the sources, with stand-ins for the names of instances."""
        for path in glob.glob(os.path.join(HERE, "..", pattern), recursive=True):
            with open(path) as file:
                for kind, suite, name in re.findall(r"^(TEST\w*)\((\w+),\s*(\w+)\)", file.read(), re.MULTILINE):
                    yield f"Some/{suite}.{name}/cuda" if kind == "TEST_P" else f"{suite}.{name}"

    def test_all_tests_of_cuda_alone_run(self):
        names = list(self.written("**/*_cuda_test.cc"))
        self.assertGreater(len(names), 10)
        patterns = self.gpu_run.CUDA_TESTS.split(":")
        self.assertEqual([name for name in names
                          if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)], [])

    def test_every_pattern_has_tests(self):
        names = list(self.written("**/*_test.cc"))
        of_sanitizers = [pattern for _, some in self.gpu_run.SANITIZER_RUNS for pattern in some.split(":")]
        for pattern in [*self.gpu_run.CUDA_TESTS.split(":"), self.gpu_run.ALONE, self.gpu_run.MUTANT_TESTS,
                        *of_sanitizers]:
            suite = pattern.split(".")[0].split("/")[-1]  # instances are named elsewhere
            self.assertTrue(any(fnmatch.fnmatchcase(name, pattern) or
                                fnmatch.fnmatchcase(name.split(".")[0].split("/")[-1], suite) for name in names),
                            pattern)


class Processes(unittest.TestCase):
    """Tests of one process: what a test that ends it, or hangs, does to the others."""

    def counts(self, limit=20, **fakes):
        sys.path.insert(0, HERE)
        import gtest_runs

        with tempfile.TemporaryDirectory(prefix="ovq_gtest_runs_") as folder:
            program = os.path.join(folder, "some_tests")
            write_program(program, GTEST)
            env = {**os.environ, "FAKE_LOG": os.path.join(folder, "log"), **fakes}
            names = gtest_runs.list_tests(program, "*", env, folder)
            self.assertEqual(names, ["A.one_cuda", "B.one_cuda", "C.one_cuda"])
            gtest_runs.TEST_SECONDS = 1
            return gtest_runs.run_tests(program, names, limit, env, folder)

    def test_a_crash_hides_only_its_own_test(self):
        counts = self.counts(FAKE_CRASH="B")
        self.assertEqual((counts["passed"], counts["failed"], counts["ended"], counts["not_run"]),
                         (["A.one_cuda", "C.one_cuda"], ["B.one_cuda"], ["signal 6 in B.one_cuda"], []))

    def test_the_output_of_failing_tests_is_kept(self):
        self.assertEqual(self.counts(FAKE_FAIL="B")["output"], "[ RUN      ] B.one_cuda\n[  FAILED  ]\n")
        kept = self.counts(FAKE_FAIL="A", FAKE_CRASH="C")["output"]
        self.assertTrue(kept.startswith("[ RUN      ] A.one_cuda\n[  FAILED  ]\n"), kept)
        self.assertTrue(kept.endswith("[ RUN      ] C.one_cuda\n\n"), kept)

    def test_a_test_that_hangs_hides_no_other(self):
        counts = self.counts(FAKE_SLOW="A")
        self.assertEqual((counts["passed"], counts["failed"], counts["ended"]),
                         (["B.one_cuda", "C.one_cuda"], ["A.one_cuda"], ["no output in A.one_cuda"]))

    def test_the_end_of_the_time_leaves_what_ran(self):
        counts = self.counts(limit=0.5, FAKE_SLOW="B")
        self.assertEqual((counts["passed"], counts["ended"], sorted(counts["not_run"])),
                         (["A.one_cuda"], ["time limit in B.one_cuda"], ["B.one_cuda", "C.one_cuda"]))


class Machine(unittest.TestCase):
    @unittest.skipIf(subprocess.run("unshare -rn true && ip -V", shell=True, capture_output=True).returncode != 0,
                     "no network namespace, or no `ip`, here")
    def test_a_loopback_interface_that_is_down_is_brought_up(self):
        ended = subprocess.run(["unshare", "-rn", sys.executable, "-c",
                                "import machine; print(machine.loopback()); print(machine.loopback())"],
                               cwd=HERE, capture_output=True, text=True)
        self.assertRegex(ended.stdout, r"^no connection over 127.0.0.1: .*unreachable; after `ip link set lo up` "
                                       r"\(done\): up\nup\n$", ended.stderr)


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
        self.assertEqual(gpu_run.result["most_sessions"], [
            {"context": 64, "sessions_kv": 5, "sessions": 4, "tokens_per_s_kv": 2.5, "tokens_per_s": 8.0}])
        self.assertEqual(gpu_run.result["against_kv_cache"], [
            {"context": 64, "sessions": 4, "tokens_per_s_ratio": 4.0, "sessions_that_fit": 100,
             "sessions_that_fit_kv": 20, "sessions_ratio": 5.0}])


if __name__ == "__main__":
    unittest.main(verbosity=2)
