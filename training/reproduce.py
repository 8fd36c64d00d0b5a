"""Trains, serves and scores the models of a recipe: one command from scratch to the figure.

For each mixer, --out contains: MIXER/, the run of train.py with its log; RECIPE-MIXER/, the model
folder; and MIXER.csv, its scores. scores.png and scores.md show all scores. The training of vq
starts from the trained full. Existing results are kept: an interrupted run continues, a finished one
is not repeated. Remove a CSV to score again.

With --all instead of a recipe: every table and figure of docs/results.md, its log and docs/results-minutes.md, by the commands that stand
there, part after part; what came to its end before is not repeated. --list says what there is and how
long it takes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import page
import score
from checkpoints import CHECKPOINT, read_checkpoint
from data import DEFAULT_ROOT
from export import export
from ovq.config import MIXER_NAMES
from predictors import PredictionError
from report import report
from schedule import parse_phases
from train import load_recipe

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SERVER = os.path.join(os.path.dirname(_FOLDER), "build", "cpu", "bin", "ovq-server")
# The reason is in README.md, "The model in models/python-bytes".
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0",
                "MALLOC_TRIM_THRESHOLD_": "100000000000",
                "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_PROGRESS_SECONDS = 60


class ReproduceError(RuntimeError):
    """A part of the run failed."""


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", help="JSON file, see train.py; recipes/ has those used")
    parser.add_argument("--all", action="store_true", help="the whole page in place of a recipe")
    parser.add_argument("--scale", choices=page.SCALES, default="small",
                        help="--all: headline has the parts of hours too")
    parser.add_argument("--part", action="append", default=[], metavar="NAME",
                        help="--all: this one only; may be given again")
    parser.add_argument("--list", action="store_true", help="--all: says the parts, runs none")
    parser.add_argument("--out", help="folder for everything that is made; with --all: for what is done, "
                        "runs/all by default")
    parser.add_argument("--mixers", default="ovq,full,vq", help="of " + ", ".join(MIXER_NAMES))
    parser.add_argument("--server", default=_SERVER, help="ovq-server; default: the one that "
                        "`cmake --build --preset cpu` makes")
    parser.add_argument("--server-args", default="", help="its further flags, as one argument: "
                        "--server-args='--device cuda'")
    parser.add_argument("--device", default="cpu", help="to train on")
    parser.add_argument("--data-root", default=DEFAULT_ROOT,
                        help="folder of the standard library (byte corpus)")
    args = parser.parse_args()
    if args.all:
        if args.recipe:
            raise ValueError(f"--all: has all recipes, without '{args.recipe}'")
        args.out = args.out or os.path.join(_FOLDER, "runs", "all")
        return args
    if not args.recipe or not args.out:
        raise ValueError("expected a recipe and --out, or --all")
    args.mixers = args.mixers.split(",")
    for mixer in args.mixers:
        if mixer not in MIXER_NAMES:
            raise ValueError(f"--mixers: {mixer!r} is not one of {', '.join(MIXER_NAMES)}")
    if "vq" in args.mixers and "full" not in args.mixers:
        raise ValueError("--mixers: vq starts from the weights of full: add full")
    if not os.path.exists(args.server):
        raise ValueError(f"--server: {args.server} is missing: build it first, "
                         "`cmake --preset cpu && cmake --build --preset cpu --target ovq-server`")
    return args


def keep_recipe(recipe, out):
    """Stores the recipe in --out; another recipe needs another folder."""
    trained = {name: part for name, part in recipe.items() if name != "score"}
    path = os.path.join(out, "recipe.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if json.load(file) != trained:
                raise ValueError(f"--out: {path} is of another recipe: remove the folder, "
                                 "or give another one")
        return
    os.makedirs(out, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trained, file, indent=2)


def finished(checkpoint):
    """True if a run is complete."""
    if not os.path.exists(checkpoint):
        return False
    saved = read_checkpoint(checkpoint, ("args", "seconds", "step"))
    minutes, steps = saved["args"]["minutes"], saved["args"]["steps"]
    return saved["seconds"] >= 60 * minutes if minutes else saved["step"] >= steps


class Training:
    """One train.py in a process of its own, with its output in a log."""

    def __init__(self, args, mixer, alone):
        self.mixer = mixer
        self.log = os.path.join(args.out, f"{mixer}.log")
        run = os.path.join(args.out, mixer)
        command = [sys.executable, os.path.join(_FOLDER, "train.py"), "--recipe", args.recipe,
                   "--run", run, "--mixer", MIXER_NAMES[mixer], "--device", args.device,
                   "--data-root", args.data_root]
        if not alone:
            command += ["--workers", "1"]
        if mixer == "vq":
            command += ["--init", os.path.abspath(os.path.join(args.out, "full", CHECKPOINT))]
        if os.path.exists(os.path.join(run, CHECKPOINT)):
            command.append("--resume")
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                            env={**os.environ, **_ENVIRONMENT})

    def last_line(self):
        with open(self.log, encoding="utf-8") as file:
            return (file.read().splitlines() or ["starting"])[-1]

    def ended(self):
        """True if the process has ended; raises an error if it failed."""
        code = self.process.poll()
        if code:
            raise ReproduceError(f"training {self.mixer} failed, see {self.log}: "
                                 f"{self.last_line()}")
        return code == 0


def can_start(mixer, trained):
    """VQ attention starts from trained full attention and samples its keys: section 8.1."""
    return mixer != "vq" or "full" in trained


def train_all(args):
    """Trains as many models at once as there are cores, but at most two; on a GPU one at a time."""
    trained = {mixer for mixer in MIXER_NAMES
               if finished(os.path.join(args.out, mixer, CHECKPOINT))}
    waiting = [mixer for mixer in args.mixers if mixer not in trained]
    n_at_once = min(2, len(os.sched_getaffinity(0)), len(waiting)) if args.device == "cpu" else 1
    running, said = [], time.monotonic()
    try:
        while waiting or running:
            for mixer in [mixer for mixer in waiting if can_start(mixer, trained)]:
                if len(running) < n_at_once:
                    waiting.remove(mixer)
                    running.append(Training(args, mixer, n_at_once == 1))
                    print(f"training {mixer}, log in {running[-1].log}", flush=True)
            time.sleep(0.2)
            for training in [training for training in running if training.ended()]:
                print(f"trained {training.mixer}: {training.last_line()}", flush=True)
                trained.add(training.mixer)
                running.remove(training)
            if time.monotonic() - said > _PROGRESS_SECONDS:
                said = time.monotonic()
                for training in running:
                    print(f"{training.mixer}: {training.last_line()}", flush=True)
    finally:
        for training in running:
            training.process.terminate()
        for training in running:
            training.process.wait()


def paths_of(args, mixer):
    """Returns (model folder, CSV) of a mixer."""
    name = os.path.splitext(os.path.basename(args.recipe))[0]
    return (os.path.join(args.out, f"{name}-{mixer}"), os.path.join(args.out, f"{mixer}.csv"))


def score_arguments(args, recipe, mixer):
    """Returns the arguments of score.py."""
    model, csv = paths_of(args, mixer)
    arguments = ["--model", model, "--server", args.server, f"--server-args={args.server_args}",
                 "--data-root", args.data_root, "--out", csv]
    for option, value in recipe.get("score", {}).items():
        value = ",".join(map(str, value)) if isinstance(value, list) else value
        arguments += [f"--{option.replace('_', '-')}", str(value)]
    return arguments


def score_model(args, recipe, mixer):
    """Exports the run's model, serves and scores it; returns the CSV."""
    model, csv = paths_of(args, mixer)
    if os.path.exists(csv):
        print(f"{csv} is there: kept", flush=True)
        return csv
    export(os.path.join(args.out, mixer, CHECKPOINT), model,
           recipe["config"].get("torch_dtype", "float32"), overwrite=True)
    print(f"scoring {mixer}", flush=True)
    if score.main(score_arguments(args, recipe, mixer)):
        raise ReproduceError(f"{mixer}: the reference disagrees, see above")
    return csv


def main():
    args = parse_args()
    if args.all:
        parts = page.read_parts(args.scale, args.part)
        if args.list:
            print(*page.describe(parts, args.out), sep="\n")
        else:
            page.run_all(parts, args.out)
        return
    recipe = load_recipe(args.recipe)
    # reports invalid options now, not after the training
    score.parse_args(score_arguments(args, recipe, args.mixers[0]))
    keep_recipe(recipe, args.out)
    train_all(args)
    scores = [score_model(args, recipe, mixer) for mixer in args.mixers]
    phases = recipe.get("training", {}).get("phases")
    longest = max(phase.length for phase in parse_phases(phases)) if phases else None
    print(*report(scores, os.path.join(args.out, "scores"), trained_length=longest), sep="\n")


if __name__ == "__main__":
    # turns SIGTERM into an exception, so that the processes that this one started are ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("reproduce.py: interrupted; the same command continues")
    except (ReproduceError, PredictionError, ValueError, OSError) as error:
        sys.exit(f"reproduce.py: {error}")
