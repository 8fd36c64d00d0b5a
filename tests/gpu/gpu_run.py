"""Tests and measures the CUDA build on this machine: see docs/cuda.md.

usage: gpu_run.py --root FOLDER [--bin FOLDER] [--out FOLDER ...] [--budget SECONDS]

FOLDER holds bin/, lib/, tests/, models/ and manifest.json, as tests/gpu/bundle.sh packs them. Every
stage has a time limit of its own, so that a hang costs one stage. Python's standard library only.
"""

import argparse
import ctypes
import datetime
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from limited_run import TIME_LIMIT, run

CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
TEST_PROGRAMS = ["kernels_tests", "model_tests", "engine_tests"]
PROGRAMS = [*TEST_PROGRAMS, "attend_mutant", "bench_cuda", "ovq-server"]
SANITIZER_TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
# Small shapes of every kernel: a sanitizer slows a kernel down a hundredfold.
SANITIZER_FILTER = ":".join([
    "*MixerContract.AgreesWithReference/*cuda*", "*OvqUpdate.*", "*AttendTies.*", "*/AttendTest.*",
    "CudaProductTest.*", "NormActTargets.*/cuda", "PrepareDevices.*/cuda", "EmbedDevices.*/cuda"])
SANITIZER_RUNS = [("kernels_tests", SANITIZER_FILTER), ("model_tests", "*SamplerAgreement.*/cuda")]
# Last line of a tool, and its number of findings.
SANITIZER_SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+) .*$", re.MULTILINE)
CLOCK_FIELDS = ["clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu",
                "power.draw", "pstate"]
# Sampled during timing. Older drivers have another name for the reasons why clocks are low.
SAMPLED_FIELDS = [["clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", reasons]
                  for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active")]
SAMPLE_SECONDS = 1
TEST_SECONDS = 40  # the longest that one test may take
ENDED_BY_ITSELF = ("exit 0", "exit 1")  # a gtest program that came to its end
MOST_RERUN = 40  # failing tests that run once more
KEPT_OUTPUT = 4000  # characters of a failing stage that go into the result


def query_gpu(fields):
    """The first GPU's values of nvidia-smi, which is only ever asked."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None
    lines = answer.stdout.strip().splitlines()
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return dict(zip(fields, values)) if answer.returncode == 0 and len(values) == len(fields) else None


def ask_driver(library="libcuda.so.1"):
    """The first GPU as the driver's own library describes it, where nvidia-smi is missing."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    name, count, version = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    asked = [driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count))]
    if any(asked) or count.value == 0:
        return None
    asked += [driver.cuDeviceGet(ctypes.byref(device), 0),
              driver.cuDeviceGetName(name, len(name), device),
              driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
              driver.cuDriverGetVersion(ctypes.byref(version))]
    if any(asked):
        return None
    return {"name": name.value.decode(), "driver_version": f"CUDA {version.value}",
            "memory.total": f"{memory.value} bytes"}


class ClockSampler:
    """Samples clocks, and the reasons why they are low, while entered."""

    def __init__(self):
        self.samples = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self):
        fields = next((fields for fields in SAMPLED_FIELDS if query_gpu(fields)), None)
        begin = time.monotonic()
        while fields is not None:
            values = query_gpu(fields)
            if values is not None:
                self.samples.append({"seconds": round(time.monotonic() - begin, 1), **values})
            if self.ended.wait(SAMPLE_SECONDS):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def cuda_version():
    nvcc = shutil.which("nvcc") or os.path.join(CUDA_HOME, "bin", "nvcc")
    if not os.path.exists(nvcc):
        return None
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release [\d.]+, V([\d.]+)", text)
    return found.group(1) if found else None


def cuda_library_folders():
    """Folders that may hold cuBLAS: the toolkit's, else those of Python packages."""
    folders = [os.path.join(CUDA_HOME, "lib64")]
    for base in sys.path:
        folders += sorted(glob.glob(os.path.join(base, "nvidia", "*", "lib")))
    return [folder for folder in folders if glob.glob(os.path.join(folder, "libcublasLt.so*"))]


def built_from(program):
    """The build stamp that a program prints (build_stamp.sh), or None."""
    with open(program, "rb") as file:
        found = re.search(rb'ovq-build: (\{"source_hash[^}]*\})', file.read())
    return json.loads(found.group(1)) if found else None


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


class GpuRun:
    def __init__(self, root, bin_folder, budget, out=()):
        self.out = list(out)
        self.root = os.path.abspath(root)
        self.bin = os.path.abspath(bin_folder or os.path.join(root, "bin"))
        self.deadline = time.monotonic() + budget
        self.scratch = tempfile.mkdtemp(prefix="ovq_gpu_run_")
        self.env = {**os.environ, "TMPDIR": self.scratch,
                    "OVQ_GOLDEN_DIR": os.path.join(self.root, "tests", "golden")}
        present = os.environ.get("LD_LIBRARY_PATH")
        self.env["LD_LIBRARY_PATH"] = ":".join(
            cuda_library_folders() + ([present] if present else []))
        self.result = {"failures": []}

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def limit(self, seconds):
        return min(seconds, self.deadline - time.monotonic())

    def run(self, command, limit, env=None, silence=None):
        return run(command, self.limit(limit), env or self.env, self.root, silence)

    def program(self, name):
        path = os.path.join(self.bin, name)
        return path if os.path.exists(path) else None

    def fail(self, what):
        self.result["failures"].append(what)
        print(f"FAILED: {what}", flush=True)

    def say(self, stage):
        left = self.deadline - time.monotonic()
        print(f"\n== {stage} ({left:.0f} s left)", flush=True)

    # Stages.

    def describe(self):
        manifest = read_json(os.path.join(self.root, "manifest.json")) or {}
        self.result.update({
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "git_commit": manifest.get("git_commit"),
            "git_dirty": manifest.get("git_dirty"),
            "gpu": query_gpu(["name", "driver_version", "memory.total", "compute_cap"]) or ask_driver(),
            "cuda_version": cuda_version(),
            "glibc": " ".join(platform.libc_ver()),
            "clocks_before": query_gpu(CLOCK_FIELDS),
        })
        self.programs_of_one_build(manifest.get("source_hash"))
        for key in ("gpu", "cuda_version", "clocks_before", "source_hash", "git_commit"):
            print(f"{key}: {self.result[key]}")
        if self.result["gpu"] is None:
            self.fail("neither nvidia-smi nor the driver shows a GPU")
        for name in PROGRAMS:
            if self.program(name) is not None and shutil.which("ldd") is not None:
                for line in self.run(["ldd", self.program(name)], 30).output.splitlines():
                    if "not found" in line:
                        self.fail(f"{name}: {line.strip()}")

    def programs_of_one_build(self, of_the_checkout):
        """A result is of the sources that all programs were built from."""
        builds = {name: built_from(self.program(name)) for name in PROGRAMS if self.program(name)}
        self.result["build"] = next((build for build in builds.values() if build), {})
        self.result["source_hash"] = self.result["build"].get("source_hash")
        for name, build in builds.items():
            if build is None:
                self.fail(f"{name} does not say what it was built from")
            elif build != self.result["build"]:
                self.fail(f"{name} was built from other sources, or otherwise, than {next(iter(builds))}")
        if of_the_checkout not in (None, self.result["source_hash"]):
            self.fail("the programs were built from other sources than those beside them")

    def tests(self):
        self.result["tests"] = {}
        for name in TEST_PROGRAMS:
            if self.program(name) is None:
                continue
            self.say(name)
            counts = self.gtest(name, limit=130)
            self.result["tests"][name] = counts
            print({key: value for key, value in counts.items() if key != "output"})
            if counts["failed"] or counts["ended"] != "exit 0" or counts["passed"] == 0:
                self.fail(f"{name}: {counts['ended']}, {len(counts['failed'])} failed, "
                          f"{counts['last_begun']} begun last")
                self.rerun(name, counts)
            if counts["skipped_cuda"]:
                self.fail(f"{name}: {counts['skipped_cuda']} tests of cuda were skipped")
            self.write()
        if sum(counts["passed_cuda"] for counts in self.result["tests"].values()) == 0:
            self.fail("no test of cuda passed")

    def negative_control(self):
        """Tests of a kernel with a deliberate mistake. They must fail, else the other tests prove little."""
        if self.program("attend_mutant") is None:
            self.fail("attend_mutant is missing")
            return
        self.say("attend_mutant")
        counts = self.gtest_once("attend_mutant", "TensorCores/AttendTest.*", TEST_SECONDS)
        counts.pop("output")  # of intended failures
        self.result["negative_control"] = counts
        if counts["ended"] != "exit 1" or not counts["failed"]:
            self.fail(f"attend_mutant: {counts['ended']}, {len(counts['failed'])} failed, which it should")

    def rerun(self, name, counts):
        """Repeats failing tests with blocking launches: a failure that disappears is an ordering error."""
        names = [test for test in counts["failed"] if "*" not in test][:MOST_RERUN]
        if not names:
            return
        again = self.gtest_once(name, ":".join(names), TEST_SECONDS,
                                env={**self.env, "CUDA_LAUNCH_BLOCKING": "1"})
        counts["launch_blocking"] = {key: again[key] for key in ("ended", "passed", "failed", "output")}
        print(f"{name} with CUDA_LAUNCH_BLOCKING=1: {again['passed']} passed, "
              f"{len(again['failed'])} failed, {again['ended']}")

    def gtest(self, name, limit):
        """Counts of a test program; after a crash or a hang of its suites, one by one."""
        end = time.monotonic() + limit
        whole = self.gtest_once(name, "*", limit)
        if whole["ended"] in (*ENDED_BY_ITSELF, TIME_LIMIT):
            return whole
        listed = self.run([self.program(name), "--gtest_list_tests"], 30).output
        total = {**whole, "passed": 0, "passed_cuda": 0, "failed": [], "skipped": [],
                 "skipped_cuda": 0}
        for suite in re.findall(r"^(\S+)\.(?=\s|$)", listed, flags=re.MULTILINE):
            part = self.gtest_suite(name, suite, end)
            for key in ("passed", "passed_cuda", "failed", "skipped", "skipped_cuda", "seconds"):
                total[key] += part[key]
        return total

    def gtest_suite(self, name, suite, end):
        """One suite. A test that crashes or hangs counts as failed, and the others run again."""
        crashed = []
        while True:
            pattern = f"{suite}.*" + ("-" + ":".join(crashed) if crashed else "")
            counts = self.gtest_once(name, pattern, end - time.monotonic())
            if counts["ended"] in ENDED_BY_ITSELF:
                break
            culprit = counts["last_begun"]
            if counts["ended"] == TIME_LIMIT or culprit is None or culprit in crashed:
                counts["failed"].append(f"{suite}.* ({counts['ended']})")
                break
            crashed.append(culprit)
        counts["failed"] += crashed
        return counts

    def gtest_once(self, name, pattern, limit, prefix=(), env=None):
        report = os.path.join(self.scratch, "gtest.json")
        if os.path.exists(report):
            os.remove(report)
        finished = self.run([*prefix, self.program(name), f"--gtest_filter={pattern}",
                             f"--gtest_output=json:{report}"], limit, env=env,
                            silence=None if prefix else TEST_SECONDS)
        begun = re.findall(r"^\[ RUN +\] (\S+)", finished.output, flags=re.MULTILINE)
        counts = {"ended": finished.ended, "passed": 0, "passed_cuda": 0, "failed": [], "skipped": [],
                  "skipped_cuda": 0, "seconds": round(finished.seconds, 1),
                  "last_begun": begun[-1] if begun else None, "output": ""}
        if prefix:
            counts["summaries"] = [found.group(0) for found in
                                   SANITIZER_SUMMARY.finditer(finished.output)]
            counts["findings"] = sum(int(found) for found in
                                     SANITIZER_SUMMARY.findall(finished.output))
        for suite in (read_json(report) or {}).get("testsuites", []):
            for test in suite["testsuite"]:
                full = f"{suite['name']}.{test['name']}"
                if test.get("failures"):
                    counts["failed"].append(full)
                elif test.get("result") == "SKIPPED":
                    counts["skipped"].append(full)
                    counts["skipped_cuda"] += "cuda" in json.dumps(test).lower()
                elif test.get("status") == "RUN":
                    counts["passed"] += 1
                    counts["passed_cuda"] += "cuda" in full.lower()
        if finished.code is None:  # stopped before it wrote a report
            passed = re.findall(r"^\[ +OK \] (\S+)", finished.output, flags=re.MULTILINE)
            counts["passed"] = len(passed)
            counts["passed_cuda"] = sum("cuda" in name.lower() for name in passed)
            counts["failed"] = re.findall(r"^\[ +FAILED +\] ([^\s,]+)", finished.output,
                                          flags=re.MULTILINE)
        if finished.code != 0:
            counts["output"] = finished.output[-KEPT_OUTPUT:]
            print(counts["output"])
        return counts

    def bench(self):
        if self.program("bench_cuda") is None:
            self.fail("bench_cuda is missing")
            return
        self.bench_of("bench", "bf16", 170)

    def bench_int8(self):
        if self.program("bench_cuda") is not None:
            self.bench_of("bench_int8", "i8", 150)

    def bench_of(self, name, states, limit):
        self.say(f"bench_cuda, states in {states}")
        report = os.path.join(self.scratch, name + ".json")
        with ClockSampler() as clocks:
            finished = self.run([self.program("bench_cuda"), "--json", report, "--state-dtype", states], limit)
        print(finished.output[-8000:])
        # Written after every figure, so a program that was stopped leaves what it had.
        bench = self.result[name] = read_json(report) or {}
        bench["ended"] = finished.ended
        bench["seconds"] = round(finished.seconds, 1)
        bench["clocks"] = clocks.samples
        # The results of this build are wrong, so its times may be, too.
        bench["of_a_failing_build"] = bool(self.result["failures"])
        if self.result["failures"]:
            print("these are times of a build that fails its tests")
        # Running out of time here is no failure.
        if finished.code != 0 and not (name == "bench_int8" and finished.ended == TIME_LIMIT):
            self.fail(f"bench_cuda, states in {states}: {finished.ended}")

    def serve(self):
        self.say("serve_check.py")
        script = os.path.join(self.root, "tests", "gpu", "serve_check.py")
        if self.program("ovq-server") is None:
            self.result["serve_check"] = "skipped: no ovq-server here"
            print(self.result["serve_check"])
            return
        finished = self.run([sys.executable, script, "--bin", self.bin, "--model",
                             os.path.join(self.root, "models", "python-bytes")], 90)
        print(finished.output[-KEPT_OUTPUT:])
        self.result["serve_check"] = finished.ended
        if finished.code != 0:
            self.result["serve_check_output"] = finished.output[-KEPT_OUTPUT:]
            self.fail(f"serve_check.py: {finished.ended}")

    def sdpa(self):
        self.say("sdpa_baseline.py")
        report = os.path.join(self.scratch, "sdpa.json")
        # The environment as it was: PyTorch brings its own libraries.
        finished = self.run(
            [sys.executable, os.path.join(self.root, "tests", "gpu", "sdpa_baseline.py"), "--json",
             report], 90, env=dict(os.environ))
        print(finished.output[-KEPT_OUTPUT:])
        baseline = read_json(report)
        if baseline is None:
            reason = finished.output.strip().splitlines() or [finished.ended]
            self.result["sdpa_baseline"] = {"skipped": reason[-1]}
            return
        baseline["ended"] = finished.ended
        self.result["sdpa_baseline"] = baseline
        self.compare(baseline)

    def compare(self, baseline):
        """Tokens/s at equal sessions, and how many sessions fit next to the weights."""
        bench = self.result.get("bench", {})
        ours = {figure["sessions"]: figure for figure in bench.get("figures", [])
                if figure["name"] == "decode"}
        memory = baseline.get("memory_bytes", 0)
        rows = []
        for theirs in baseline.get("figures", []):
            mine = ours.get(theirs["sessions"])
            if mine is None:
                continue
            fit_ours = (memory - bench["model"]["weight_bytes"]) // mine["state_bytes_per_session"]
            fit_kv = (memory - theirs["weight_bytes"]) // theirs["kv_bytes_per_session"]
            rows.append({"context": theirs["context"], "sessions": theirs["sessions"],
                         "tokens_per_s_ratio": theirs["seconds"] / mine["seconds"],
                         "sessions_that_fit": fit_ours, "sessions_that_fit_kv": fit_kv,
                         "sessions_ratio": fit_ours / max(fit_kv, 1)})
        self.result["against_kv_cache"] = rows

    def sanitizers(self):
        found = shutil.which("compute-sanitizer")
        for place in ("bin", "compute-sanitizer"):
            path = os.path.join(CUDA_HOME, place, "compute-sanitizer")
            found = found or (path if os.path.exists(path) else None)
        if found is None:
            self.result["sanitizers"] = "skipped: no compute-sanitizer here"
            print("\n" + self.result["sanitizers"])
            return
        probe = self.run([found, "--version"], 30)
        if probe.code != 0:  # a wrapper without the tool behind it
            self.result["sanitizers"] = f"skipped: {found} does not run: {probe.ended}"
            print("\n" + self.result["sanitizers"])
            return
        self.result["sanitizers"] = {}
        runs = [(tool, *run) for tool in SANITIZER_TOOLS for run in SANITIZER_RUNS
                if self.program(run[0]) is not None]
        for i, (tool, name, pattern) in enumerate(runs):
            share = (self.deadline - time.monotonic()) / (len(runs) - i)
            self.say(f"compute-sanitizer {tool} {name}")
            if share < 5:
                self.result["sanitizers"][f"{tool} {name}"] = {"ended": "no time left"}
                continue
            self.sanitize(found, tool, name, pattern, min(share, 90))
            self.write()

    def sanitize(self, sanitizer, tool, name, pattern, seconds):
        # The check of cuBLASLt's products would take the time; every product is our own instead.
        counts = self.gtest_once(name, pattern, seconds,
                                 [sanitizer, "--tool", tool, "--error-exitcode", "86"],
                                 env={**self.env, "OVQ_CUDA_PRODUCTS": "own"})
        self.result["sanitizers"][f"{tool} {name}"] = counts
        print(f"{tool}: {counts['ended']}, {counts['passed']} passed in {counts['seconds']} s, "
              f"{counts['findings']} findings")
        if counts["findings"] > 0:
            self.fail(f"compute-sanitizer {tool} {name}: {'; '.join(counts['summaries'])}")
        elif counts["ended"] not in ("exit 0", TIME_LIMIT):
            # Being slow is no finding: the result has what ran in time.
            self.fail(f"compute-sanitizer {tool} {name}: {counts['ended']}")
        elif counts["ended"] != TIME_LIMIT and not counts["summaries"]:
            self.fail(f"compute-sanitizer {tool} {name}: no summary in its output")

    # The end.

    def write(self):
        """Writes the result after every stage, so that there is one however this program ends."""
        name = self.result["date"].replace(":", "").replace("T", "-").rstrip("Z") + ".json"
        for folder in self.out:
            os.makedirs(folder, exist_ok=True)
            part = os.path.join(folder, name + ".part")
            with open(part, "w") as file:
                json.dump(self.result, file, indent=1)
                file.write("\n")
            os.replace(part, os.path.join(folder, name))

    def finish(self):
        self.result["clocks_after"] = query_gpu(CLOCK_FIELDS)
        self.result["finished"] = True
        self.write()
        for folder in self.out:
            print(f"wrote a result into {folder}")

    def summary(self):
        print("\n== Summary")
        for name, counts in self.result.get("tests", {}).items():
            print(f"{name:16} {counts['passed']} passed ({counts['passed_cuda']} of cuda), {len(counts['failed'])} failed, "
                  f"{len(counts['skipped'])} skipped, {counts['ended']}")
        for bench, of in (("bench", ""), ("bench_int8", "int8 ")):
            for figure in self.result.get(bench, {}).get("figures", []):
                target = figure.get("target")
                verdict = "" if target is None else f"  target {target}: " + (
                    "met" if figure["met"] else "missed")
                print(f"{of + figure['name']:18} {figure['sessions']:4} sessions "
                      f"{figure['seconds'] * 1e3:10.3f} ms  {figure['measure']} "
                      f"{figure['value']:.3f}{verdict}")
        for row in self.result.get("against_kv_cache", []):
            print(f"KV cache at {row['context']:6}, {row['sessions']:3} sessions: tokens/s x "
                  f"{row['tokens_per_s_ratio']:.2f}, sessions that fit x {row['sessions_ratio']:.1f}")
        print("FAILED: " + "; ".join(self.result["failures"]) if self.result["failures"]
              else "all passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", required=True, help="the unpacked bundle, or a checkout")
    parser.add_argument("--bin", help="folder of the programs; default ROOT/bin")
    parser.add_argument("--out", action="append", default=[], help="folder of the result file")
    parser.add_argument("--budget", type=float, default=560, help="seconds for everything")
    options = parser.parse_args()
    gpu_run = GpuRun(options.root, options.bin, options.budget, options.out)
    stages = [gpu_run.tests, gpu_run.negative_control, gpu_run.bench, gpu_run.serve, gpu_run.sdpa,
              gpu_run.bench_int8, gpu_run.sanitizers]
    try:
        gpu_run.describe()
        gpu_run.result["finished"] = False
        gpu_run.write()
        for stage in stages if gpu_run.result["gpu"] is not None else []:
            stage()
            gpu_run.write()
        gpu_run.finish()
        gpu_run.summary()
    finally:
        gpu_run.close()
    return 1 if gpu_run.result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
