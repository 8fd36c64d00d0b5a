"""A short test that callers cannot hurt each other: four attacks of tests/campaign/hostile.py, and nine
others, three of each kind, against a server that is as slow as one of half the processors with AVX2.

usage: attacks_test.py --build BUILD_FOLDER
"""

import argparse
import os
import platform
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import security_util  # noqa: F401  ends the program with a message if a requirement is missing

CAMPAIGN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "campaign", "hostile.py")
NO_GROUP = 3  # the campaign's status where no control group can be made


def campaign(build, *arguments):
    return subprocess.call([sys.executable, CAMPAIGN, "--brief", "--build", build, *arguments])


def capped(build):
    if platform.machine() not in ("x86_64", "AMD64"):
        print("skipped: attacks on a capped server; only x86-64 has instruction sets to cap")
        return 0
    status = campaign(build, "--slow", "0.5")
    if status != NO_GROUP:
        return status
    print("skipped: the cap of the processors' time, for want of a control group; AVX2 alone is tested", flush=True)
    return campaign(build, "--isa", "avx2")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    folder = parser.parse_args().build
    sys.exit(campaign(folder) or capped(folder))
