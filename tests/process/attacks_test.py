"""A short test that callers cannot hurt each other: four attacks of tests/campaign/hostile.py.

usage: attacks_test.py --build BUILD_FOLDER
"""

import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import security_util  # noqa: F401  ends the program with a message if a requirement is missing

CAMPAIGN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "campaign", "hostile.py")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    sys.exit(subprocess.call([sys.executable, CAMPAIGN, "--brief", "--build", parser.parse_args().build]))
