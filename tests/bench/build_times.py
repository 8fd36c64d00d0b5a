#!/usr/bin/env python3
"""Builds targets from nothing, without ccache, and prints the processor time of every compilation.

Usage: tests/bench/build_times.py [--preset cpu] [--jobs 1] [--folder FOLDER] [--units 15] TARGET...

Processor time (user and system) hardly depends on what else the machine does, unlike the duration
that ninja logs. The totals per target include its precompiled header; links and generators are the
remainder of the line 'all'.
"""
import argparse
import collections
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def launch(log, command):
    """Runs a compiler and appends its processor time and output file to `log`."""
    status = subprocess.run(command).returncode
    output = command[command.index("-o") + 1] if "-o" in command else command[-1]
    with open(log, "a") as file:
        file.write(f"{processor_seconds():.2f}\t{output}\n")
    return status


def build(arguments, folder):
    """Returns the processor time of the whole build and of each output file, in seconds."""
    log = folder / "build_times.log"
    launcher = f"{sys.executable};{__file__};--launch;{log}"
    subprocess.run(["cmake", "--preset", arguments.preset, "-B", folder, "-DCCACHE=OFF",
                    f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"],
                   cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)
    begin = processor_seconds()
    subprocess.run(["cmake", "--build", folder, "-j", str(arguments.jobs), "--target",
                    *arguments.targets], check=True, stdout=sys.stderr)
    lines = [line.rstrip("\n").split("\t") for line in open(log)]
    return processor_seconds() - begin, {name: float(seconds) for seconds, name in lines}


def main():
    if sys.argv[1:2] == ["--launch"]:
        sys.exit(launch(sys.argv[2], sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, help="keep the build here; must not exist")
    parser.add_argument("--units", type=int, default=15, help="how many of the largest to print")
    parser.add_argument("targets", nargs="+")
    arguments = parser.parse_args()
    folder = arguments.folder or pathlib.Path(tempfile.mkdtemp(prefix="build_times."))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        total, units = build(arguments, folder)
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    targets = collections.Counter()
    for name, seconds in units.items():
        targets[re.search(r"CMakeFiles/(.+?)\.dir/", name).group(1)] += seconds
    print(f"{total:8.1f}  all")
    for name, seconds in targets.most_common():
        print(f"{seconds:8.1f}  {name}")
    print("largest units:")
    for name, seconds in sorted(units.items(), key=lambda unit: -unit[1])[:arguments.units]:
        print(f"{seconds:8.1f}  {name}")


if __name__ == "__main__":
    main()
