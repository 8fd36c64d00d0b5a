"""Scores a model on its task through a server, by length and dictionary size, as CSV.

The sequences come from the task in the model folder's task.json (export.py writes it) and a seed
that training never uses; a byte model is scored on held-out documents, a model with a byte-level
tokenizer.json on --text. Every model gets the same sequences. The server computes all predictions;
--backend reference computes the same rows with the PyTorch reference.

The CSV has one row for each length and max_centroids with the accuracy or the bits per byte; `seen`
and `position` are empty. For KVM, whose table grows by the model's own law, it has one row for each
length, with its law's N as `centroids`, if it has one. Further rows give the accuracy of in-context
learning by the number of examples of the same function `seen` before, and bits per byte by
`position`, of a token: positions after half of it (the first: from the start) up to it. `scored` are
tokens, of texts their bytes. `length` and `centroids`
are the requested values, `tokens` and `max_centroids` the resulting ones. `error` is the standard
error over sequences, because tokens of one sequence are right or wrong together. `agreement`, with
--check-reference, is the share of the `checked` scored tokens that the reference predicts alike,
`logprob_difference` the largest difference of their log-probabilities; with --check-server-args both
compare with a second server with other flags.
"""

import argparse
import concurrent.futures
import contextlib
import csv
import dataclasses
import errno
import fractions
import json
import os
import signal
import statistics
import sys
import tempfile
import time

import numpy as np

from data import DEFAULT_ROOT, DataError
from devices import device_name
from ovq.config import ConfigError, load_config, read_json_object, with_changes
from predictors import (PredictionError, ReferencePredictor, connected, server_flags,
                        started_server)
from scoring import (COLUMNS, EACH_COLUMNS, LEAST_SEQUENCES, DocumentExam, RowLaw, TaskExam, TextExam, compare,
                     make_plan, mixer_of, score_job)
from tasks import TaskError, json_fields, read_fields

LENGTHS = "512,1024,2048,4096,8192,16384,32768,65536"
SERVED_MEMORIES = ("paper", "closest-pair", "keydiff")
CENTROIDS = "128,256,512,1024,2048"
_LEAST_AGREEMENT = 0.999
_PROGRESS_SECONDS = 10


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


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def listed(parse):
    def parse_all(text):
        return [parse(entry) for entry in text.split(",")]
    parse_all.__name__ = "list"  # the name in argparse's errors
    return parse_all


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
    add("--device", type=device_name, default="cpu", help="of the reference: cpu, or cuda for a GPU")
    add("--memory", help="what full and OVQ layers read through in place of their own. --server: its "
        "--memory, paper, closest-pair or keydiff. --backend reference: window, sinks, keydiff, received, closest_pair "
        "(see ovq/memories.py) or dictionary, OVQ's; of as many rows as --centroids leaves live ones at a "
        "sequence's end. Column `ablation` has it")
    add("--config", type=json_fields, default={}, metavar="JSON", help="fields in place of those of the "
        "model's config.json, those of a section one by one: {\"ovq\": {\"recent_tokens\": 64}}")
    add("--task", type=json_fields, default={}, help="JSON: fields in place of task.json's")
    add("--lengths", type=listed(positive), default=LENGTHS, help="longest sequences, in tokens")
    add("--centroids", type=listed(centroid_spec), default=CENTROIDS, help="max_centroids of a "
        "call, or 0.3x: as many as leave at most 0.3 live centroids a token")
    add("--sequences", type=positive, help=f"per length; default: as many as have "
        f"{TaskExam.least_scored} scored tokens or {DocumentExam.least_scored} bytes for every "
        f"value of seen or position, at least {LEAST_SEQUENCES}")
    add("--concurrency", type=positive, default=8, help="sequences scored at once")
    add("--each", metavar="FILE", help="a CSV of every single sequence, too: scored tokens and the sum of "
        "their right ones or bits; paired.py compares two of them")
    add("--seed", type=int, default=0, help="of the sequences")
    add("--text", nargs="+", default=[], metavar="FILE", help="in place of a task: the beginnings of "
        "these texts, one for each sequence, in the tokens of --model's tokenizer.json, which "
        "--server tells, with --backend reference, too")
    add("--data-root", default=DEFAULT_ROOT, help="folder of the standard library (byte models)")
    add("--timeout", type=float, default=3600, help="seconds of one call")
    add("--check-reference", type=int, default=0, metavar="K", help="sequences of each row that "
        "the reference predicts too, in float32; exit status 1 below "
        f"{100 * _LEAST_AGREEMENT:g}%% agreement")
    add("--check-server-args", metavar="FLAGS", help="--server: a second server with these flags in "
        "place of --server-args predicts all sequences too; how often both predict the same token is "
        "said, and no failure")
    args = parser.parse_args(arguments)
    if args.backend == "server" and not (args.address or args.server):
        raise ValueError("one of --address and --server is needed")
    if args.check_reference < 0:
        raise ValueError(f"--check-reference: {args.check_reference} is negative")
    if args.each and os.path.realpath(args.each) == os.path.realpath(args.out):
        raise ValueError("--each: is --out")
    if args.text and not (args.server and args.model):
        raise ValueError("--text: with --server and --model")
    if args.backend == "server" and args.ablation != "none":
        raise ValueError("--ablation: no server has ablations; it needs --backend reference")
    if args.check_server_args is not None and (args.check_reference or not args.server):
        raise ValueError("--check-server-args: with --server and without --check-reference")
    if args.memory and args.ablation != "none":
        raise ValueError("--memory: no --ablation goes with it")
    if args.memory and args.backend == "server":
        if not args.server or args.memory not in SERVED_MEMORIES or args.check_reference:
            raise ValueError(f"--memory: with a server {' or '.join(SERVED_MEMORIES)}, with --server "
                             "and without --check-reference")
        args.server_args += f" --memory {args.memory}"
    if args.config and (args.address or not args.model):
        raise ValueError("--config: with a --model that --server or --backend reference reads")
    if not args.model and not (args.address and "name" in args.task and not args.check_reference):
        raise ValueError("--model is needed, but for --address with a whole --task")
    return args


def with_config(folder, changes):
    """Returns (a temporary folder, the model in it with changed fields of config.json, the
    changes)."""
    config = with_changes(read_json_object(os.path.join(folder, "config.json")), changes)
    said = []
    for name, value in changes.items():
        if isinstance(value, dict):
            said += [f"{name}.{field}={json.dumps(x)}" for field, x in value.items()]
        else:
            said.append(f"{name}={json.dumps(value)}")
    parent = tempfile.TemporaryDirectory()
    copy = os.path.join(parent.name, os.path.basename(os.path.abspath(folder)))
    os.mkdir(copy)
    for name in os.listdir(folder):
        os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(copy, name))
    os.remove(os.path.join(copy, "config.json"))
    with open(os.path.join(copy, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return parent, copy, " ".join(said)


def token_bytes(folder):
    """Returns the number of bytes that each token of a byte-level tokenizer.json stands for, 0 for
    special ones, int64 [vocab_size]."""
    tokenizer = read_json_object(os.path.join(folder, "tokenizer.json"))
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocab = tokenizer["model"]["vocab"]
    lengths = np.zeros(max([*vocab.values(), *special]) + 1, np.int64)
    for piece, token in vocab.items():  # a byte is a character here
        lengths[token] = 0 if token in special else len(piece)
    return lengths


def text_exam(args):
    """Returns (exam, label) of --text."""
    lengths, texts = token_bytes(args.model), []
    with started_server(args.server, args.model) as address, connected(address, args.timeout) as server:
        for path in args.text:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            tokens = np.array(server.tokenize(text, add_bos=None), np.int64)
            if lengths[tokens].sum() != len(text.encode()):
                raise ValueError(f"{args.model}: tokenizer.json is not byte-level, or changes {path}")
            texts.append(tokens)
    args.sequences = args.sequences or len(texts)
    return TextExam(texts, lengths), "text"


def make_exam(args):
    """Returns (exam, label) of the model's task with --task's changes; the label names the changes.
    """
    changes, fields = args.task, read_fields(args.model) if args.model else {}
    if "name" not in {**fields, **changes}:
        raise ValueError(f"{args.model}: no task.json: export.py writes it, or pass --task "
                         "with a name")
    label = [{**fields, **changes}["name"]]
    label += [f"{name}={value}" for name, value in changes.items()
              if name != "name" and fields.get(name) != value]
    if label[0] in DocumentExam.names:
        return DocumentExam(label[0], args.data_root), " ".join(label)
    return TaskExam({**fields, **changes}, args.seed), " ".join(label)


class Progress:
    """Prints what is being scored and the remaining time: one line for each row and every ten
    seconds."""

    def __init__(self, plan):
        self._total = sum(job.n_tokens * job.n_sequences for job in plan)
        self._done, self._started = 0, time.monotonic()
        self._said = self._started

    def advance(self, job, n_done):
        self._done += job.n_tokens
        if time.monotonic() - self._said > _PROGRESS_SECONDS:
            self.say(f"{job}: {n_done} of {job.n_sequences} sequences")

    def say(self, text):
        self._said = time.monotonic()
        left = (self._said - self._started) * (self._total / max(self._done, 1) - 1) / 60
        print(f"{text}; {100 * self._done / self._total:.0f}% done, about {left:.0f} min left",
              flush=True)


def predict_all(predictor, job, tokens, pool, progress):
    """Returns predictions of every sequence in tokens [n_sequences, n_tokens]."""
    futures = [pool.submit(predictor.predict, row, job.max_centroids) for row in tokens]
    try:
        for n_done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            future.result()
            progress.advance(job, n_done)
    except PredictionError as error:
        raise PredictionError(f"{job}: {error}") from error
    finally:  # after an error or an interrupt, pending predictions are cancelled
        for future in futures:
            future.cancel()
    return [future.result() for future in futures]


class Scorer:
    """Scores jobs. n_checked, n_agreed: scored tokens that the reference predicted, and those
    predicted alike."""

    def __init__(self, exam, predictor, reference, n_check):
        self._exam, self._predictor = exam, predictor
        self._reference, self._n_check = reference, n_check
        self.n_checked, self.n_agreed = 0, 0
        self.each = []  # rows of the single sequences of all jobs

    def _check(self, job, made, predictions, row):
        first = dataclasses.replace(made, tokens=made.tokens[:self._n_check])  # None: all
        n_checked, n_agreed, largest = compare(self._reference, job, first, predictions)
        row.update(checked=n_checked, agreement=f"{n_agreed / n_checked:.6f}",
                   logprob_difference=f"{max(largest):.3g}")
        self.n_checked += n_checked
        self.n_agreed += n_agreed
        return f", reference agrees on {n_agreed} of {n_checked}, within {max(largest):.3g}, " \
            f"in the median sequence within {statistics.median(largest):.3g}"

    def score(self, job, pool, progress):
        """Returns the job's rows."""
        made = self._exam.sequences(job.length, job.n_sequences)
        started = time.monotonic()
        predictions = predict_all(self._predictor, job, made.tokens, pool, progress)
        rows, each = score_job(self._exam, job, made, predictions, time.monotonic() - started)
        self.each += each
        sizes = self._predictor.state_bytes(job.n_tokens, job.max_centroids)
        for row in rows:
            row["state_bytes"], row["full_kv_cache_bytes"] = sizes
        metric, whole = self._exam.metric, rows[0]
        text = f"{job}: {metric.replace('_', ' ')} {float(whole[metric]):.4f} of " \
            f"{whole['scored']} tokens, {whole['tokens_per_second']} tokens/s"
        if self._reference:
            text += self._check(job, made, predictions, rows[0])
        progress.say(text)
        return rows


def check_writable(path):
    """Raises what write_csv would raise when all is scored."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".partial", "w", encoding="utf-8"):
        pass
    os.remove(path + ".partial")


def write_csv(path, rows, columns=COLUMNS):
    """Writes a CSV atomically."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".partial", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(path + ".partial", path)


def fills_slots(args, mixer, min_state_size):
    """Returns whether dictionaries have as many slots as tokens up to their cap; min_state_size: the config's."""
    rule = args.memory or mixer
    if rule in ("ovq", "paper", "dictionary"):  # OVQ's own rule, by which eq. 17 gives the number else
        return min_state_size
    return rule in ("closest-pair", "keydiff") and not (args.memory and args.backend == "reference")


def run(args, stack):
    """Scores what args ask for; returns the exit status. stack ends what was started."""
    ablation = args.memory or args.ablation
    for path in filter(None, (args.out, args.each)):
        check_writable(path)
    if args.config:
        parent, args.model, changed = with_config(args.model, args.config)
        stack.enter_context(parent)
        said = [part for part in (ablation, changed) if part not in ("none", "")]  # an empty section changes nothing
        ablation = " ".join(said) or "none"
    exam, label = text_exam(args) if args.text else make_exam(args)
    # enters first, so that it ends last: ending the server ends the calls for which the pool waits
    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(args.concurrency))
    if args.address:
        predictor = stack.enter_context(connected(args.address, args.timeout))
        info = predictor.info()
        name, layer_types, shares = info.name, info.layer_types, None
    else:
        name = os.path.basename(os.path.abspath(args.model))
        config = load_config(args.model)
        if exam.vocab_size > config.vocab_size:
            raise ValueError(f"{args.model}: vocab_size: {config.vocab_size}, but {label} needs {exam.vocab_size}")
        if args.memory:
            config = config.read_by(args.memory.replace("_", "-"))
        layer_types, shares = config.served_types, config.shares
    mixer = mixer_of(layer_types)
    bounded = mixer in ("ovq", "closest-pair", "keydiff") or args.memory
    grows_at_once = not args.address and config.ovq_rules.min_state_size
    law = RowLaw(fills_slots(args, mixer, grows_at_once), shares or (1.0,), args.ablation == "linear_growth_blind")
    plan = make_plan(exam, args.lengths, args.centroids if bounded else [None], args.sequences, law)
    saturation_n = load_config(args.model).kvm.state_saturation_n \
        if args.model and mixer == "kvm" else None
    if saturation_n is not None:
        plan = [dataclasses.replace(job, centroids=str(saturation_n)) for job in plan]
    reference = None
    if args.check_reference or args.backend == "reference":
        reference = ReferencePredictor(args.model, args.ablation, args.memory, args.device)
    if args.backend == "reference":
        predictor = reference
    elif args.server:
        address = stack.enter_context(started_server(args.server, args.model,
                                                     server_flags(plan, args.server_args)))
        predictor = stack.enter_context(connected(address, args.timeout))
    n_check, least = args.check_reference, _LEAST_AGREEMENT
    if args.check_server_args is not None:
        address = stack.enter_context(started_server(args.server, args.model,
                                                     server_flags(plan, args.check_server_args)))
        reference = stack.enter_context(connected(address, args.timeout))
        n_check, least = None, 0
    scorer = Scorer(exam, predictor, reference if n_check != 0 else None, n_check)
    progress, rows = Progress(plan), []
    for job in plan:
        rows += scorer.score(job, pool, progress)
    common = {"model": name, "mixer": mixer, "ablation": ablation,
              "backend": predictor.backend, "task": label}
    write_csv(args.out, [{**common, **row} for row in rows])
    if args.each:
        write_csv(args.each, scorer.each, EACH_COLUMNS)
    if scorer.n_agreed < least * scorer.n_checked:
        print(f"score.py: the reference agrees on {scorer.n_agreed} of {scorer.n_checked} scored "
              f"tokens only", file=sys.stderr)
        return 1
    return 0


def main(arguments=None):
    with contextlib.ExitStack() as stack:
        return run(parse_args(arguments), stack)


if __name__ == "__main__":
    # turns SIGTERM into an exception, so that the server that this program started is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("score.py: interrupted")
    except (ConfigError, DataError, PredictionError, TaskError, ValueError, OSError) as error:
        sys.exit(f"score.py: {error}")
