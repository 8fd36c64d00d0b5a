#!/usr/bin/env python3
"""Compares servers, or settings of one, under the same load in rounds, so that noise of the machine affects all alike.

usage: bench_turns.py --model FOLDER --load='OPTIONS OF ovq-load' [--rounds 5] [--build build/cpu]
                      --server NAME='FLAGS' --server NAME='[BINARY] FLAGS' ...

All servers run all the time, but only one has load; the order is reversed every round. FLAGS may begin with
the path of another ovq-server; the default is that of the build. Prints, as a table, the medians over the rounds of
what ovq-load reports, in milliseconds, and of the ratios to the first server of the same round.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "process"))

from server_process import ServerProcess  # noqa: E402

COLUMNS = {"p50_itl_ms": "gap, p50", "mean_itl_ms": "mean", "p99_itl_ms": "p99",
           "max_itl_ms": "longest", "mean_ttft_ms": "first token, mean",
           "output_throughput": "output tokens/s"}


def start(build, model, flags):
    """The server of `--server NAME=FLAGS`."""
    flags = shlex.split(flags)
    binary = os.path.join(build, "bin", "ovq-server")
    if flags and not flags[0].startswith("-"):
        binary = flags.pop(0)
    return ServerProcess(binary, model, "--log-requests", "none", *flags)


def load(build, server, options):
    """Runs ovq-load once and returns its report."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "load.json")
        run = subprocess.run([os.path.join(build, "bin", "ovq-load"), "--server", server.address,
                              *shlex.split(options), "--output-json", path],
                             capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"ovq-load: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        with open(path) as file:
            return json.load(file)


def table(runs):
    """Table lines of {name: [report of a round]}; ratios are to the first name."""
    base = next(iter(runs.values()))
    lines = ["| | " + " | ".join(COLUMNS.values()) + " | p99 / p50 | tokens/s, of the first | p99, of the first |",
             "|---|" + "---:|" * (len(COLUMNS) + 3)]
    for name, rounds in runs.items():
        cells = [f"{statistics.median(run[column] for run in rounds):,.1f}" for column in COLUMNS]
        cells.append(f"{statistics.median(run['p99_itl_ms'] / run['p50_itl_ms'] for run in rounds):.1f}")
        for column in ("output_throughput", "p99_itl_ms"):
            ratios = [run[column] / first[column] for run, first in zip(rounds, base)]
            cells.append(f"{statistics.median(ratios):.2f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--load", required=True, help="options of ovq-load, as one argument")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--server", action="append", required=True, metavar="NAME=FLAGS")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected at least 1")
    servers = {}
    try:
        for argument in options.server:
            name, separator, flags = argument.partition("=")
            if not separator or name in servers:
                parser.error(f"--server {argument!r}: expected NAME=FLAGS, each name once")
            servers[name] = start(options.build, options.model, flags)
        runs = {name: [] for name in servers}
        for turn in range(options.rounds):
            for name in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                runs[name].append(load(options.build, servers[name], options.load))
    finally:
        for server in servers.values():
            server.kill()
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
