"""Scores a model on its task through a server: accuracy by length and dictionary size, as CSV.

The sequences come from the task in the model folder's task.json (export.py writes it) and a seed
that training never draws from; every model is given the same ones. The server computes all
predictions; --backend reference computes the same rows with the PyTorch reference.

The CSV has a row per length and max_centroids, with an empty `seen`, and for in-context learning
also one per number of examples of the same function `seen` before. `length` and `centroids` are
what was asked for, `tokens` and `max_centroids` what that means. `error` is the standard error of
the accuracy over sequences: tokens of one sequence are right or wrong together. `agreement`, with
--check-reference, is the share of the `checked` scored tokens that the reference predicts alike,
`logprob_difference` the largest one of their log-probabilities.
"""

import argparse
import concurrent.futures
import contextlib
import csv
import dataclasses
import fractions
import json
import math
import os
import signal
import sys
import time

import numpy as np

from ovq.config import ConfigError, load_config
from predictors import (PredictionError, ReferencePredictor, ServedPredictor, connect,
                        server_flags, started_server)
from tasks import TaskError, make_task

LENGTHS = "512,1024,2048,4096,8192,16384,32768,65536"
CENTROIDS = "128,256,512,1024,2048"
COLUMNS = ("model", "mixer", "ablation", "backend", "task", "length", "tokens", "centroids",
           "max_centroids", "live_centroids", "state_bytes", "full_kv_cache_bytes", "sequences",
           "scored", "seen", "accuracy", "error", "seconds", "tokens_per_second", "checked",
           "agreement", "logprob_difference")
_MIXERS = {"ovq_attention": "ovq", "full_attention": "full", "vq_attention": "vq"}
_LEAST_SCORED, _LEAST_SEQUENCES = 384, 4
_LEAST_AGREEMENT = 0.999
_PROGRESS_SECONDS = 10


def mixer_of(layer_types):
    """What a model is called after: the mixer that reads its whole context."""
    return next((name for kind, name in _MIXERS.items() if kind in layer_types), "sliding")


def live_centroids(n_tokens, max_centroids):
    """Eq. 17 at the end of a sequence."""
    return n_tokens * max_centroids // (n_tokens + max_centroids)


def centroids_for(spec, n_tokens):
    """max_centroids of "512" or "0.3x": the most that leaves at most 0.3 live ones a token."""
    if not spec.endswith("x"):
        return int(spec)
    # live_centroids < n, the first number too many, as long as max_centroids < this:
    n = math.floor(fractions.Fraction(spec[:-1]) * n_tokens) + 1
    return -(-n * n_tokens // (n_tokens - n)) - 1


def centroid_spec(text):
    try:
        ratio = fractions.Fraction(text[:-1]) if text.endswith("x") else None
        valid = 0 < ratio < 1 if ratio is not None else int(text) >= 2
    except (ValueError, ZeroDivisionError):
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an integer above 1 nor a ratio such as 0.3x")
    return text


def listed(parse):
    def parse_all(text):
        return [parse(entry) for entry in text.split(",")]
    parse_all.__name__ = "value"  # argparse names it in errors
    return parse_all


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def parse_args(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", required=True, help="the CSV file")
    add("--model", help="native model folder; with --address only for its task.json")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--address", metavar="HOST:PORT", help="of a running server")
    where.add_argument("--server", metavar="PATH", help="ovq-server to serve --model with")
    add("--server-args", default="", help="its further flags, as one argument: "
        "--server-args='--compute-dtype f32 --state-dtype f32'")
    add("--backend", choices=("server", "reference"), default="server")
    add("--ablation", default="none", help="--backend reference: a dictionary rule to replace")
    add("--task", type=json.loads, default={}, help="JSON: fields in place of task.json's")
    add("--lengths", type=listed(positive), default=LENGTHS, help="longest sequences, in tokens")
    add("--centroids", type=listed(centroid_spec), default=CENTROIDS, help="max_centroids of a "
        "call, or 0.3x: as many as leave at most 0.3 live centroids a token")
    add("--sequences", type=positive, help=f"per length; default: as many as score "
        f"{_LEAST_SCORED} tokens, at least {_LEAST_SEQUENCES}")
    add("--concurrency", type=positive, default=8, help="sequences scored at once")
    add("--seed", type=int, default=0, help="of the sequences")
    add("--timeout", type=float, default=3600, help="seconds of one call")
    add("--check-reference", type=int, default=0, metavar="K", help="sequences of each row that "
        "the reference predicts too, in float32; exit status 1 below "
        f"{100 * _LEAST_AGREEMENT:g}%% agreement")
    args = parser.parse_args(arguments)
    if args.backend == "server" and not (args.address or args.server):
        raise ValueError("one of --address and --server is needed")
    if args.backend == "server" and args.ablation != "none":
        raise ValueError("--ablation: no server has ablations; it needs --backend reference")
    if not args.model and not (args.address and "name" in args.task and not args.check_reference):
        raise ValueError("--model is needed, but for --address with a whole --task")
    return args


def read_task(folder, changes):
    """(fields, label) of the folder's task with changes; the label names what they change."""
    fields = {}
    path = os.path.join(folder or "", "task.json")
    if folder and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)["task"]
    elif "name" not in changes:
        raise ValueError(f"{path} is missing: export.py writes it, or pass --task with a name")
    changed = {name: value for name, value in changes.items() if fields.get(name) != value}
    fields = {**fields, **changes}
    label = " ".join([fields["name"], *(f"{name}={value}" for name, value in changed.items()
                                        if name != "name")])
    return fields, label


@dataclasses.dataclass(frozen=True)
class Job:
    """A row to be: n_sequences of n_tokens each, made for `length`, at max_centroids."""
    length: int
    n_tokens: int
    n_sequences: int
    centroids: str
    max_centroids: int | None


def sequences(task, length, n_sequences, seed):
    """The same for every model: they depend on the task, the length, their number and the seed."""
    # A spawned stream is never that of a plain (seed, batch), which training draws from.
    stream = np.random.SeedSequence(seed, spawn_key=(length,))
    return task.sequences(length, n_sequences, np.random.default_rng(stream))


def make_plan(task, args, mixer):
    """Jobs in the order of their length."""
    plan = []
    for length in sorted(args.lengths):
        one = sequences(task, length, 1, args.seed)
        n_tokens = one.tokens.shape[1]
        n_sequences = args.sequences or max(_LEAST_SEQUENCES,
                                            -(-_LEAST_SCORED // int(one.scored.sum())))
        for spec in args.centroids if mixer == "ovq" else [""]:
            plan.append(Job(length, n_tokens, n_sequences, spec,
                            centroids_for(spec, n_tokens) if spec else None))
    return plan


def share_and_error(right, counts):
    """sum(right) / sum(counts) over sequences and its standard error (None for one sequence).

    right, counts: [n_sequences]. With equal counts the error is that of the mean of the shares.
    """
    n = len(counts)
    share = right.sum() / counts.sum()
    if n < 2:
        return share, None
    deviation = np.square(right - share * counts).sum()
    return share, math.sqrt(deviation * n / (n - 1)) / counts.sum()


def accuracies(right, scored, seen, by_seen):
    """[(seen or None, scored tokens, accuracy, error)] of right, scored, seen [n_sequences, n]."""
    groups = [(None, scored)]
    if by_seen:
        groups += [(n, scored & (seen == n)) for n in np.unique(seen[scored])]
    rows = []
    for group, marks in groups:
        counts = marks.sum(axis=1)
        share, error = share_and_error((right & marks).sum(axis=1)[counts > 0],
                                       counts[counts > 0])
        rows.append((group, int(counts.sum()), share, error))
    return rows


class Progress:
    """Says what is scored and when the rest will be: a line a row and every ten seconds."""

    def __init__(self, plan):
        self._total = sum(job.n_tokens * job.n_sequences for job in plan)
        self._done, self._started = 0, time.monotonic()
        self._said = self._started

    def advance(self, job, n_done):
        self._done += job.n_tokens
        if time.monotonic() - self._said > _PROGRESS_SECONDS:
            self.say(f"length {job.length}{_at(job)}: {n_done} of {job.n_sequences} sequences")

    def say(self, text):
        self._said = time.monotonic()
        left = (self._said - self._started) * (self._total / max(self._done, 1) - 1) / 60
        print(f"{text}; {100 * self._done / self._total:.0f}% done, about {left:.0f} min left",
              flush=True)


def _at(job):
    return f", {job.max_centroids} centroids" if job.max_centroids else ""


def predict_all(predictor, job, tokens, pool, progress):
    """Predictions of every sequence of tokens [n_sequences, n_tokens]."""
    futures = [pool.submit(predictor.predict, row, job.max_centroids) for row in tokens]
    try:
        for n_done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            future.result()
            progress.advance(job, n_done)
    except PredictionError as error:
        raise PredictionError(f"length {job.length}{_at(job)}: {error}") from error
    finally:  # after an error or an interrupt nobody waits for the others
        for future in futures:
            future.cancel()
    return [future.result() for future in futures]


def compare(reference, job, made, predictions):
    """(scored tokens, how many of them agree, largest difference of log-probabilities)."""
    n_checked, n_equal, largest = 0, 0, 0.0
    for tokens, scored, served in zip(made.tokens, made.scored, predictions):
        own, marks = reference.predict(tokens, job.max_centroids), scored[1:]
        n_checked += int(marks.sum())
        n_equal += int((own.top_ids == served.top_ids)[marks].sum())
        largest = max(largest, float(np.abs(own.top_logprobs - served.top_logprobs)[marks].max()))
    return n_checked, n_equal, largest


def score_job(job, made, predictions, seconds, common):
    """The job's rows as dictionaries; `common` has the columns that all of the CSV's rows share."""
    right = np.stack([one.top_ids for one in predictions]) == made.tokens[:, 1:]
    groups = accuracies(right, made.scored[:, 1:], made.seen[:, 1:], made.seen.any())
    row = {**common, "length": job.length, "tokens": job.n_tokens, "centroids": job.centroids,
           "max_centroids": job.max_centroids, "sequences": job.n_sequences}
    if job.max_centroids:
        row["live_centroids"] = live_centroids(job.n_tokens, job.max_centroids)
    rows = [{**row, "seen": seen, "scored": scored, "accuracy": f"{share:.6f}",
             "error": None if error is None else f"{error:.6f}"}
            for seen, scored, share, error in groups]
    rows[0].update(seconds=f"{seconds:.3f}",
                   tokens_per_second=f"{job.n_tokens * job.n_sequences / seconds:.1f}")
    return rows


def score_all(plan, task, predictor, reference, args, common):
    """All rows, and the (scored tokens, agreeing ones) that the reference checked."""
    rows, checked, agreed, progress = [], 0, 0, Progress(plan)
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        for job in plan:
            made = sequences(task, job.length, job.n_sequences, args.seed)
            started = time.monotonic()
            predictions = predict_all(predictor, job, made.tokens, pool, progress)
            new = score_job(job, made, predictions, time.monotonic() - started, common)
            sizes = predictor.state_bytes(job.n_tokens, job.max_centroids)
            for row in new:
                row["state_bytes"], row["full_kv_cache_bytes"] = sizes
            text = f"length {job.length}{_at(job)}: {100 * float(new[0]['accuracy']):.1f}% of " \
                f"{new[0]['scored']} tokens, {new[0]['tokens_per_second']} tokens/s"
            if reference and args.check_reference:
                first = dataclasses.replace(made, tokens=made.tokens[:args.check_reference])
                n_checked, n_equal, largest = compare(reference, job, first, predictions)
                new[0].update(checked=n_checked, agreement=f"{n_equal / n_checked:.6f}",
                              logprob_difference=f"{largest:.3g}")
                checked, agreed = checked + n_checked, agreed + n_equal
                text += f", reference agrees on {n_equal} of {n_checked}"
            progress.say(text)
            rows += new
    return rows, checked, agreed


def write_csv(path, rows):
    """Complete or not at all."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".partial", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(path + ".partial", path)


def run(args, stack):
    """Scores what args ask for; returns the exit status. stack ends what was started."""
    fields, label = read_task(args.model, args.task)
    task = make_task(fields)
    client = stack.enter_context(connect(args.address)) if args.address else None
    info = client.model_info() if client else None
    layer_types = info.layer_types if info else load_config(args.model).layer_types
    mixer = mixer_of(layer_types)
    plan = make_plan(task, args, mixer)
    reference = None
    if args.check_reference or args.backend == "reference":
        reference = ReferencePredictor(args.model, ablation=args.ablation)
    if args.backend == "reference":
        predictor = reference
    else:
        if not client:
            flags = server_flags(plan, args.server_args)
            client = stack.enter_context(connect(stack.enter_context(
                started_server(args.server, args.model, flags))))
        predictor = ServedPredictor(client, args.timeout)
    name = info.name if info else os.path.basename(os.path.abspath(args.model))
    common = {"model": name, "mixer": mixer, "ablation": args.ablation,
              "backend": predictor.backend, "task": label}
    rows, checked, agreed = score_all(plan, task, predictor, reference, args, common)
    write_csv(args.out, rows)
    if checked and agreed < _LEAST_AGREEMENT * checked:
        print(f"score.py: the reference agrees on {agreed} of {checked} scored tokens only",
              file=sys.stderr)
        return 1
    return 0


def main(arguments=None):
    with contextlib.ExitStack() as stack:
        return run(parse_args(arguments), stack)


if __name__ == "__main__":
    # ended by a signal, it still ends the server that it started
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("score.py: interrupted")
    except (ConfigError, PredictionError, TaskError, ValueError, OSError) as error:
        sys.exit(f"score.py: {error}")
