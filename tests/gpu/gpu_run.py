"""Tests and measures the CUDA build on this machine: see docs/cuda.md.

usage: gpu_run.py --root FOLDER [--bin FOLDER] [--out FOLDER ...] [--budget SECONDS]
                  [--only STAGE,...] [--skip STAGE,...]

FOLDER holds bin/, lib/, tests/, models/ and manifest.json, as tests/gpu/bundle.sh packs them. Stages, in
their order: tests, bench, serve, load, sdpa, ncu, bench_int8, sanitizers. Each has a time limit of its own,
so that a hang costs one stage, and none needs another to be well. Python's standard library only.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import traceback

import nsight
from gtest_runs import KEPT_OUTPUT, list_tests, run_process, run_shards, run_tests
from limited_run import TIME_LIMIT, run
from machine import (CLOCK_FIELDS, ClockSampler, ask_driver, cuda_library_folders, cuda_version, find_tool,
                     loopback, query_gpu)

# A run takes only tests that use a GPU, in this many processes side by side.
CUDA_TESTS = "*cuda*:*Cuda*:*Chain*:*Attend*:*OvqUpdate*:RunCaptured.*:ProductChoicesTest.*"
# Tests that look at the GPU's free memory run after the others.
ALONE = "*SteadyUseTakesNoMoreOfTheGpu*"
TEST_PROGRAMS = {"kernels_tests": 6, "model_tests": 4, "engine_tests": 1}
MUTANT_TESTS = "TensorCores/AttendTest.*"
PROGRAMS = [*TEST_PROGRAMS, "attend_mutant", "bench_cuda", "ovq-server"]
SANITIZER_TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
# Small shapes of every kernel: a sanitizer slows a kernel down a hundredfold.
SANITIZER_FILTER = ":".join([
    "*MixerContract.AgreesWithReference/*cuda*", "*OvqUpdate.*", "*AttendTies.*", "*/AttendTest.*",
    "CudaProductTest.*", "ChainProductTest.*", "*StoreRecentCuda.*", "NormActTargets.*/cuda",
    "PrepareDevices.*/cuda", "EmbedDevices.*/cuda"])
SANITIZER_RUNS = [("kernels_tests", SANITIZER_FILTER), ("model_tests", "*SamplerAgreement.*/cuda")]
# Last line of a tool, and its number of findings.
SANITIZER_SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+) .*$", re.MULTILINE)
MOST_RERUN = 40  # failing tests that run once more
USERS = "1,64,256"
LOAD_POSITION = 576  # the middle of the load's answers, which follow 512 tokens
# Name, the most kernels that are looked at, flags of bench_cuda: one decode step, four layers of a prompt's.
NSIGHT_RUNS = [("decode-1", 300, ["--only", "decode", "--sessions", "1"]),
               ("decode-64", 300, ["--only", "decode", "--sessions", "64"]),
               ("prefill", 100, ["--only", "prefill", "--prompt", "5120"])]


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
        self.model = os.path.join(self.scratch, "ovq-478m")  # bench_cuda's, once it has run
        self.env = {**os.environ, "TMPDIR": self.scratch,
                    "OVQ_GOLDEN_DIR": os.path.join(self.root, "tests", "golden"),
                    "OVQ_MODELS_DIR": os.path.join(self.root, "models")}
        present = os.environ.get("LD_LIBRARY_PATH")
        self.env["LD_LIBRARY_PATH"] = ":".join(
            cuda_library_folders() + ([present] if present else []))
        self.result = {"failures": [], "tests": {}, "stage_seconds": {}}

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def limit(self, seconds):
        return min(seconds, self.deadline - time.monotonic())

    def run(self, command, limit, env=None):
        return run(command, self.limit(limit), env or self.env, self.root)

    def script(self, name, *flags, limit, env=None):
        return self.run([sys.executable, os.path.join(self.root, "tests", "gpu", name), *flags], limit, env)

    def report(self, name):
        return os.path.join(self.scratch, name + ".json")

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
            "processors": os.cpu_count(),
            "loopback": loopback(),
            "clocks_before": query_gpu(CLOCK_FIELDS),
        })
        self.programs_of_one_build(manifest.get("source_hash"))
        for key in ("gpu", "cuda_version", "clocks_before", "loopback", "source_hash", "git_commit"):
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
        """The tests of cuda, and those of a kernel with a deliberate mistake: these must fail, else the
        others prove little."""
        jobs = [(name, self.program(name), f"{CUDA_TESTS}:-{ALONE}", n) for name, n in TEST_PROGRAMS.items()
                if self.program(name)]
        if self.program("attend_mutant"):
            jobs.append(("attend_mutant", self.program("attend_mutant"), MUTANT_TESTS, 1))
        threads = max(1, (os.cpu_count() or 1) // max(1, sum(n for *_, n in jobs)))
        env = {**self.env, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        counts = run_shards(jobs, self.limit(120), env, self.root)
        if self.program("engine_tests"):
            alone = run_shards([("engine_tests", self.program("engine_tests"), ALONE, 1)], self.limit(30), env,
                               self.root)
            for key, found in alone["engine_tests"].items():
                counts["engine_tests"][key] += found
        mutant = counts.pop("attend_mutant", None)
        self.result["tests"] = counts
        for name, of in counts.items():
            print(f"{name}: {of['passed']} passed, {len(of['failed'])} failed, {of['seconds']} s")
            for key, words in (("failed", "failed"), ("skipped", "were skipped"), ("not_run", "did not run")):
                if of[key]:
                    self.fail(f"{name}: {len(of[key])} tests {words}: {', '.join(of[key][:5])}")
            for ended in of["ended"]:
                self.fail(f"{name}: {ended}")
            if of["passed"] == 0:
                self.fail(f"{name}: no test of cuda passed")
            if of["failed"]:
                print(of["output"])
                self.rerun(name, of)
        self.negative_control(mutant)

    def negative_control(self, counts):
        if counts is None:
            self.fail("attend_mutant is missing")
            return
        counts.pop("output")  # of intended failures
        self.result["negative_control"] = counts
        if counts["ended"] or not counts["failed"]:
            self.fail(f"attend_mutant: {counts['ended']}, {len(counts['failed'])} failed, which it should")

    def rerun(self, name, counts):
        """Repeats failing tests with blocking launches: a failure that disappears is an ordering error."""
        again = run_tests(self.program(name), counts["failed"][:MOST_RERUN], self.limit(30),
                          {**self.env, "CUDA_LAUNCH_BLOCKING": "1"}, self.root)
        counts["launch_blocking"] = {"passed": again["passed"], "failed": again["failed"],
                                     "ended": again["ended"]}
        print(f"{name} with CUDA_LAUNCH_BLOCKING=1: {len(again['passed'])} passed, "
              f"{len(again['failed'])} failed")

    def bench(self):
        self.bench_of("bench", "bf16", 110)

    def bench_int8(self):
        self.bench_of("bench_int8", "i8", 60, "--only", "check,ceilings,prefill,decode,chunk_updates,ovq_prefill")

    def bench_of(self, name, states, limit, *flags):
        if self.program("bench_cuda") is None:
            self.fail("bench_cuda is missing")
            return
        report = self.report(name)
        with ClockSampler() as clocks:
            finished = self.run([self.program("bench_cuda"), "--json", report, "--state-dtype", states,
                                 "--keep-model", self.model, *flags], limit)
        print(finished.output[-KEPT_OUTPUT:])
        # Written after every figure, so a program that was stopped leaves what it had.
        bench = self.result[name] = read_json(report) or {}
        bench["ended"] = finished.ended
        bench["seconds"] = round(finished.seconds, 1)
        bench["clocks"] = clocks.samples
        if "differing_bits" in bench:
            self.fail(f"bench_cuda, states in {states}: whole prompt and single steps differ: "
                      f"{bench['differing_bits']}")
        # Running out of time here is no failure.
        elif finished.code != 0 and not (name == "bench_int8" and finished.ended == TIME_LIMIT):
            self.fail(f"bench_cuda, states in {states}: {finished.ended}")

    def bench_part(self, *flags, limit, prefix=()):
        """bench_cuda with the model that it wrote before, or writes now."""
        return self.run([*prefix, self.program("bench_cuda"), "--json", self.report("part"), *flags,
                         "--keep-model", self.model], limit)

    def serve(self):
        if self.program("ovq-server") is None:
            self.result["serve_check"] = "skipped: no ovq-server here"
            print(self.result["serve_check"])
            return
        finished = self.script("serve_check.py", "--bin", self.bin, "--model",
                               os.path.join(self.root, "models", "python-bytes"), limit=90)
        print(finished.output[-KEPT_OUTPUT:])
        self.result["serve_check"] = finished.ended
        if finished.code != 0:
            self.result["serve_check_output"] = finished.output[-KEPT_OUTPUT:]
            self.fail(f"serve_check.py: {finished.ended}")

    def load(self):
        """Measures what users of the 478M shape see through gRPC, and decode batches of the same length and sessions
        without a server: the difference is the host's."""
        if self.program("ovq-load") is None or self.program("bench_cuda") is None:
            self.result["load"] = {"skipped": "no ovq-load or no bench_cuda here"}
            print(self.result["load"]["skipped"])
            return
        alone = self.bench_part("--only", "decode", "--sessions", USERS, "--position", str(LOAD_POSITION),
                                "--prompt", "1024", "--steps", "64", limit=40)
        on_device = {figure["sessions"]: figure for figure in
                     (read_json(self.report("part")) or {}).get("figures", []) if figure["name"] == "decode"}
        report = self.report("load")
        finished = self.script("serve_load.py", "--bin", self.bin, "--model", self.model, "--users", USERS,
                               "--json", report, limit=80)
        print(finished.output[-KEPT_OUTPUT:])
        told = self.result["load"] = read_json(report) or {}
        told["ended"], told["seconds"] = finished.ended, round(finished.seconds, 1)
        for row in told.get("rows", []):
            figure = on_device.get(row["users"])
            decode = row["iterations"].get("decode", {}).get("step_duration_seconds")
            if figure and decode:
                row["decode_batch_alone"] = {key: figure[key] for key in ("seconds", "wall_seconds")}
                row["host_seconds_of_a_decode_iteration"] = decode["mean"] - figure["seconds"]
        for what, ended in (("bench_cuda at the load's position", alone), ("serve_load.py", finished)):
            if ended.code != 0:
                print(ended.output[-KEPT_OUTPUT:])
                self.fail(f"{what}: {ended.ended}")

    def sdpa(self):
        report = self.report("sdpa")
        # The environment as it was: PyTorch brings its own libraries.
        finished = self.script("sdpa_baseline.py", "--json", report, limit=90, env=dict(os.environ))
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
        """Tokens/s at equal sessions, how many sessions fit next to the weights, and tokens/s of each side's
        most sessions that were timed."""
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
        most = {}
        for theirs in baseline.get("figures", []):
            most[theirs["context"]] = max(theirs["sessions"], most.get(theirs["context"], 0))
        if not ours:
            return
        mine = ours[max(ours)]
        self.result["most_sessions"] = [
            {"context": theirs["context"], "sessions_kv": theirs["sessions"], "sessions": mine["sessions"],
             "tokens_per_s_kv": theirs["sessions"] / theirs["seconds"],
             "tokens_per_s": mine["sessions"] / mine["seconds"]}
            for theirs in baseline["figures"] if theirs["sessions"] == most[theirs["context"]]]

    def ncu(self):
        ncu = find_tool("ncu")
        self.result["ncu"] = {}
        if ncu is None or self.program("bench_cuda") is None:
            self.result["ncu"]["skipped"] = "no ncu, or no bench_cuda, here"
            print(self.result["ncu"]["skipped"])
            return
        for name, most_kernels, flags in NSIGHT_RUNS:
            finished = self.bench_part("--profile", *flags, limit=70, prefix=nsight.command(ncu, most_kernels))
            kernels = nsight.rows(finished.output)
            sums = nsight.sums(kernels)
            self.result["ncu"][name] = {"ended": finished.ended, "seconds": round(finished.seconds, 1),
                                        "kernels": len(kernels), "sums": sums}
            print(f"{name}: {len(kernels)} kernels, {sum(of['microseconds'] for of in sums.values()):.0f} us, "
                  f"{finished.seconds:.0f} s")
            for kernel, of in list(sums.items())[:8]:
                print(f"  {of['microseconds']:9.1f} us {of['launches']:4} x {of['gigabytes_per_s']:5} GB/s  "
                      f"{kernel[:70]}")
            if not kernels:
                self.fail(f"ncu {name}: {finished.ended}: {finished.output[-300:]}")
            for folder in self.out if kernels else []:
                nsight.write_csv(os.path.join(folder, f"{self.stamp()}-{name}.csv"), kernels)
            self.write()

    def sanitizers(self):
        found = find_tool("compute-sanitizer")
        if found is None:
            self.result["sanitizers"] = "skipped: no compute-sanitizer here"
            print(self.result["sanitizers"])
            return
        probe = self.run([found, "--version"], 30)
        if probe.code != 0:  # a wrapper without the tool behind it
            self.result["sanitizers"] = f"skipped: {found} does not run: {probe.ended}"
            print(self.result["sanitizers"])
            return
        self.result["sanitizers"] = {}
        runs = [(tool, *run) for tool in SANITIZER_TOOLS for run in SANITIZER_RUNS
                if self.program(run[0]) is not None]
        # Side by side: nothing is timed, and there is little time.
        with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool:
            list(pool.map(lambda run: self.sanitize(found, *run, self.limit(90)), runs))

    def sanitize(self, sanitizer, tool, name, pattern, seconds):
        # The check of cuBLASLt's products would take the time; every product is our own instead.
        names = list_tests(self.program(name), pattern, self.env, self.root)
        begin = time.monotonic()
        outcomes, _, ended, output = run_process(
            self.program(name), names, seconds,
            {**self.env, "OVQ_CUDA_PRODUCTS": "own", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}, self.root,
            [sanitizer, "--tool", tool, "--error-exitcode", "86"])
        counts = {"ended": ended, "seconds": round(time.monotonic() - begin, 1),
                  "passed": sum(outcome == "passed" for outcome in outcomes.values()), "of": len(names),
                  "failed": [test for test, outcome in outcomes.items() if outcome == "failed"],
                  "summaries": [found.group(0) for found in SANITIZER_SUMMARY.finditer(output)],
                  "findings": sum(map(int, SANITIZER_SUMMARY.findall(output)))}
        self.result["sanitizers"][f"{tool} {name}"] = counts
        print(f"{tool} {name}: {ended}, {counts['passed']} of {len(names)} passed in {counts['seconds']} s, "
              f"{counts['findings']} findings", flush=True)
        if counts["findings"] > 0:
            counts["output"] = output[-KEPT_OUTPUT:]
            self.fail(f"compute-sanitizer {tool} {name}: {'; '.join(counts['summaries'])}")
        elif ended not in ("exit 0", TIME_LIMIT):
            # Being slow is no finding: the result has what ran in time.
            counts["output"] = output[-KEPT_OUTPUT:]
            self.fail(f"compute-sanitizer {tool} {name}: {ended}")
        elif ended != TIME_LIMIT and not counts["summaries"]:
            self.fail(f"compute-sanitizer {tool} {name}: no summary in its output")

    STAGES = {"tests": tests, "bench": bench, "serve": serve, "load": load, "sdpa": sdpa, "ncu": ncu,
              "bench_int8": bench_int8, "sanitizers": sanitizers}

    def run_stages(self, names):
        for name in names:
            begin = time.monotonic()
            self.say(name)
            try:
                self.STAGES[name](self)
            except Exception:  # whatever it is, the other stages have their say
                self.fail(f"{name}: {traceback.format_exc(limit=-3)}")
            self.result["stage_seconds"][name] = round(time.monotonic() - begin, 1)
            self.write()

    # The end.

    def stamp(self):
        return self.result["date"].replace(":", "").replace("T", "-").rstrip("Z")

    def write(self):
        """Writes the result after every stage, so that there is one however this program ends."""
        name = self.stamp() + ".json"
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
        print("seconds: " + ", ".join(f"{name} {took}" for name, took in self.result["stage_seconds"].items()))
        for name, counts in self.result["tests"].items():
            print(f"{name:14} {counts['passed']} passed, {len(counts['failed'])} failed, "
                  f"{len(counts['skipped'])} skipped {'; '.join(counts['ended'])}")
        for bench, of in (("bench", ""), ("bench_int8", "int8 ")):
            for figure in self.result.get(bench, {}).get("figures", []):
                target = figure.get("target")
                verdict = "" if target is None else f"  target {target}: " + (
                    "met" if figure["met"] else "missed")
                print(f"{of + figure['name']:18} {figure['sessions']:4} {figure.get('counted', ''):8} "
                      f"{figure['seconds'] * 1e3:10.3f} ms  {figure['measure']} "
                      f"{figure['value']:.3f}{verdict}")
        for row in self.result.get("load", {}).get("rows", []):
            print(f"{row['users']:4} users: first token {row['first_token_mean_ms']:.1f} ms, gap "
                  f"{row['gap_mean_ms']:.2f} ms, {row['output_tokens_per_s']:.0f} tokens/s, host "
                  f"{1e3 * row.get('host_seconds_of_a_decode_iteration', float('nan')):.2f} ms an iteration")
        for row in self.result.get("against_kv_cache", []):
            print(f"KV cache at {row['context']:6}, {row['sessions']:3} sessions: tokens/s x "
                  f"{row['tokens_per_s_ratio']:.2f}, sessions that fit x {row['sessions_ratio']:.1f}")
        for row in self.result.get("most_sessions", []):
            print(f"most sessions at {row['context']:6}: {row['sessions']} of ours, {row['tokens_per_s']:.0f} "
                  f"tokens/s; {row['sessions_kv']} with a KV cache, {row['tokens_per_s_kv']:.0f}")
        print("FAILED: " + "; ".join(self.result["failures"]) if self.result["failures"]
              else "all passed")


def main():
    stages = list(GpuRun.STAGES)

    def some(text):
        names = text.split(",")
        if not set(names) <= set(stages):
            raise argparse.ArgumentTypeError(f"expected some of {','.join(stages)}, got {text!r}")
        return names

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", required=True, help="the unpacked bundle, or a checkout")
    parser.add_argument("--bin", help="folder of the programs; default ROOT/bin")
    parser.add_argument("--out", action="append", default=[], help="folder of the result file")
    parser.add_argument("--budget", type=float, default=460, help="seconds for everything")
    parser.add_argument("--only", type=some, default=stages, help="stages, with commas between")
    parser.add_argument("--skip", type=some, default=[], help="stages, with commas between")
    options = parser.parse_args()
    gpu_run = GpuRun(options.root, options.bin, options.budget, options.out)
    try:
        gpu_run.describe()
        gpu_run.result["finished"] = False
        gpu_run.write()
        if gpu_run.result["gpu"] is not None:
            gpu_run.run_stages([name for name in options.only if name not in options.skip])
        gpu_run.finish()
        gpu_run.summary()
    finally:
        gpu_run.close()
    return 1 if gpu_run.result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
