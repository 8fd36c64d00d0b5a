"""Loads a server over gRPC with some numbers of users and says what they saw and what the server's
iterations took.

usage: serve_load.py --bin FOLDER --model FOLDER --json FILE [--server PROGRAM] [--device cuda]
                     [--users 1,64,256] [--input 512] [--output 128]

The server runs with its default flags. The file is written after each number of users. Standard
library only.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from server_program import Server

REQUESTS_OF_A_USER = 2
FEWEST_REQUESTS = 8
RUN_SECONDS = 30  # the most that one number of users may take


def samples(page):
    """{(name, phase): value} of what the server says of its iterations."""
    return {(name, (re.search(r'phase="(\w+)"', labels) or [None, ""])[1]): float(value)
            for name, labels, value in re.findall(r"^ovq_(step_\w+){([^}]*)} (\S+)$", page, flags=re.MULTILINE)
            if not name.endswith("_bucket")}


def iterations(before, after):
    """By kind of iteration their number and the means of what is counted of each."""
    found = {}
    for (name, phase), value in after.items():
        count = value - before.get((name, phase), 0)
        if name.endswith("_count") and count > 0:
            name = name.removesuffix("_count")
            total = after[name + "_sum", phase] - before.get((name + "_sum", phase), 0)
            of = found.setdefault(phase, {})
            of[name] = {"count": int(count), "mean": total / count, "sum": total}
    return found


def load(options, server, users):
    requests = max(REQUESTS_OF_A_USER * users, FEWEST_REQUESTS)
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        before = samples(server.metrics())
        ended = subprocess.run(
            [os.path.join(options.bin, "ovq-load"), "--server", server.address, "--quiet",
             "--concurrency", str(users), "--requests", str(requests), "--connections", str(min(users, 8)),
             "--input-length", str(options.input), "--output-length", str(options.output),
             "--duration", f"{RUN_SECONDS}s", "--grace", "5s", "--output-json", report.name],
            capture_output=True, text=True, timeout=2 * RUN_SECONDS)
        after = samples(server.metrics())
        try:
            told = json.load(open(report.name))
        except ValueError:
            raise AssertionError(f"ovq-load: exit {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    steps = iterations(before, after)
    in_steps = sum(of["step_duration_seconds"]["sum"] for of in steps.values() if "step_duration_seconds" in of)
    return {"users": users, "completed": told["completed"], "failed": told["failed"],
            "cut_off": told["ovq"]["cut_off"],
            "output_tokens_per_s": told["output_throughput"], "duration": told["duration"],
            **{f"{name}_{key}_ms": told[f"{key}_{theirs}_ms"]
               for name, theirs in (("first_token", "ttft"), ("gap", "itl"), ("whole", "e2el"))
               for key in ("mean", "p50", "p99")},
            "queue_mean_ms": told["ovq"]["server_queue_ms"]["mean"],
            "prefill_mean_ms": told["ovq"]["server_prefill_ms"]["mean"],
            "client_cpu_cores": told["ovq"]["client_cpu_cores"],
            "share_of_time_in_iterations": in_steps / told["duration"], "iterations": steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, help="folder of ovq-load and the server")
    parser.add_argument("--server", help="default: ovq-server of --bin")
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--users", default="1,64,256")
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    options = parser.parse_args()
    program = options.server or os.path.join(options.bin, "ovq-server")
    begin = time.monotonic()
    rows = []
    with Server(program, options.model, options.device) as server:
        started = time.monotonic() - begin
        load(options, server, 1)  # a warm-up: graphs, memory
        for users in map(int, options.users.split(",")):
            row = load(options, server, users)
            rows.append(row)
            print(f"{users:4} users: first token {row['first_token_mean_ms']:.1f} ms, gap {row['gap_mean_ms']:.2f} "
                  f"ms, {row['output_tokens_per_s']:.0f} tokens/s, {row['completed']} completed, "
                  f"{row['failed']} failed", flush=True)
            with open(options.json, "w") as file:
                json.dump({"seconds_to_start": started, "input": options.input, "output": options.output,
                           "rows": rows}, file)
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
