"""Measures how a model's layers, or their heads, should share a session's slots on its own task.

Makes sequences of the task of the folder's task.json, and has `ovq-inspect --shares` read them: it
bounds one layer after another to a ladder of shares, chooses those that lose least in bits per scored
token, and tries them on other sequences. All further flags are ovq-inspect's: --memory, --slots,
--by-head, --write, --json, --threads. For a text, call ovq-inspect itself.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import score
from data import DEFAULT_ROOT, DataError
from ovq.config import ConfigError
from tasks import TaskError, json_fields


def parse_args(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="model folder")
    add("--inspect", required=True, metavar="PATH", help="ovq-inspect")
    add("--task", type=json_fields, default={}, help="JSON: fields in place of task.json's")
    add("--length", type=score.positive, default=2048, help="longest sequence, in tokens")
    add("--sequences", type=score.positive, default=4, help="to measure on, and as many others to "
        "try the shares on")
    add("--seed", type=int, default=1, help="of the task's sequences; score.py's are 0's")
    add("--data-root", default=DEFAULT_ROOT, help="folder of the standard library (byte models)")
    return parser.parse_known_args(arguments)


def write_sequences(made, file):
    """Writes a line for each sequence, as ovq-inspect reads them. Nothing precedes token 0."""
    for tokens, scored in zip(made.tokens, made.scored):
        indices = [i for i in scored.nonzero()[0].tolist() if i > 0]
        file.write(json.dumps({"tokens": tokens.tolist(), "scored": indices}) + "\n")


def main(arguments):
    args, flags = parse_args(arguments)
    exam, label = score.make_exam(args)
    print(label, file=sys.stderr, flush=True)  # --json's object is all that standard output has
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sequences.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            write_sequences(exam.sequences(args.length, 2 * args.sequences), file)
        command = [args.inspect, args.model, "--shares", path, "--sequences", str(args.sequences)]
        return subprocess.run([*command, *flags], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ConfigError, DataError, TaskError, ValueError, OSError) as error:
        sys.exit(f"shares.py: {error}")
    except KeyboardInterrupt:
        sys.exit("shares.py: interrupted")
