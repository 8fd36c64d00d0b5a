"""Measures how a model's layers, or their heads, should share a session's rows, and writes
ovq.shares.

Layers need rows unequally: some need only a handful, others lose accuracy with every row removed.
For a ladder of shares, a server runs the sequences with one layer bounded to a share of --centroids
and all others to a thousand times as many rows. A layer's curve is the cost of that, in bits per
scored token, beyond the cost with all layers bounded like the others. The chosen shares, in steps of
1/16, have the smallest sum of costs. Prints the curves, and the cost on other sequences with equal
shares and with these; --write changes the folder's config.json.

With --heads every key/value head is treated like a layer here, and has a curve of its own.

Works with any folder that ovq-server loads. The folder is served with modified config.json files,
once for each layer and twice more, on --text, or else the task of its task.json.

With closest pairs, that many rows are exact to the bit. With the paper's rule t tokens have
floor(t M / (t + M)) rows: with two layers and 256 centroids M is 32,752 at the least share and
1,048,064 at the largest, which gives 1,927 and 2,044 rows for 2,048 tokens. Both terms of the
difference include that, so a curve contains only its effect on the value of one layer's rows.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys

import numpy as np

import score
from data import DEFAULT_ROOT, DataError
from ovq.config import ConfigError
from predictors import PredictionError, connected, server_flags, started_server
from scoring import Job
from tasks import Sequences, TaskError, json_fields

_STEPS = 16  # steps of a share
_LEAST_SHARE, _MOST_ROWS = 1 / 1024, 1 << 24  # limits of the server
ROW_LAYERS = ("ovq_attention", "closest_pair_attention")  # layer types to which ovq.shares applies
# the server's variants, and the arguments of a call that reads a sequence exactly
MEMORIES = {"paper": ("paper,exact", {"memory": "exact"}),
            **{rule: (rule, {"max_centroids": _MOST_ROWS})
               for rule in ("closest-pair", "closest-pair-all")}}


def parse_args(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="model folder")
    add("--server", required=True, metavar="PATH", help="ovq-server")
    add("--server-args", default="", help="its further flags, as one argument")
    add("--memory", choices=MEMORIES, default="closest-pair", help="of the server: which layers have "
        "rows, and by which rule")
    add("--text", metavar="FILE", help="UTF-8, read in place of the task, every token scored")
    add("--task", type=json_fields, default={}, help="JSON: fields in place of task.json's")
    add("--length", type=score.positive, default=2048, help="longest sequence, in tokens")
    add("--centroids", type=score.positive, default=256, help="max_centroids that is shared out")
    add("--heads", type=score.positive, default=1, metavar="N", help="key/value heads of each of these "
        "layers, which then have shares of their own; the server says if it is another number")
    add("--sequences", type=score.positive, default=4, help="to measure on, and as many others to "
        "try the shares on")
    add("--seed", type=int, default=1, help="of the task's sequences; score.py's are 0's")
    add("--data-root", default=DEFAULT_ROOT, help="folder of the standard library (byte models)")
    add("--timeout", type=float, default=3600, help="seconds of one call")
    add("--write", action="store_true", help="the shares into the folder's config.json")
    return parser.parse_args(arguments)


def ladder(n):
    """Returns the shares to try: powers of two, and the whole for one of n layers or heads."""
    return sorted({2.0 ** -i for i in range(5)} | {2.0 ** i for i in range(n.bit_length())
                                                   if 2 ** i < n} | {float(n)})


@dataclasses.dataclass(frozen=True)
class Trial:
    """Bounds one of n layers or heads alone, by the shares of a config.json and a call's
    max_centroids.

    n: layers, or heads of all layers. own, other: the shares of the bounded one and of each other
    one."""
    n: int
    own: float

    @classmethod
    def of(cls, n, max_centroids):
        """Makes a trial with the least share for which the others do not exceed the server's limit.
        """
        widest = n * max_centroids
        return cls(n, max(_LEAST_SHARE, widest * n / (n - 1) / _MOST_ROWS))

    @property
    def other(self):
        return (self.n - self.own) / (self.n - 1)

    def shares(self, bounded):
        return [self.own if i == bounded else self.other for i in range(self.n)]

    def max_centroids(self, rows):
        """Returns a call's max_centroids with which the bounded one's cap is `rows`."""
        return round(rows / self.own)

    def other_rows(self, rows):
        """Returns the cap of each other one in that case."""
        return round(self.other * self.max_centroids(rows))


def by_layer(shares, n_heads):
    """Formats ovq.shares: one entry for each layer, a list for several heads."""
    if n_heads == 1:
        return shares
    return [shares[i:i + n_heads] for i in range(0, len(shares), n_heads)]


@contextlib.contextmanager
def served(args, shares):
    """Yields a predictor of the model with these shares, by_layer(); None: equal ones."""
    parent, folder, _ = score.with_config(args.model, {"ovq": {"shares": shares}})
    limits = Job(args.length, args.length, args.sequences, None, _MOST_ROWS)
    flags = server_flags([limits], f"--memory {MEMORIES[args.memory][0]} {args.server_args}")
    with parent, started_server(args.server, folder, flags) as address, \
            connected(address, args.timeout) as predictor:
        yield predictor


def text_sequences(predictor, path, length, count):
    """Returns sequences that begin with the tokenizer's prefix, which is not scored; their tokens
    are from one each of `count` equal parts of the file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    start = predictor.tokenize("", add_bos=True)
    ends = [len(text) * i // count for i in range(count + 1)]
    pieces = [predictor.tokenize(text[begin:end]) for begin, end in zip(ends, ends[1:])]
    shortest = len(start) + min(map(len, pieces))
    if shortest < length:
        raise ValueError(f"--text: {path} has {count} pieces of {shortest} tokens, not of {length}; "
                         "--length or --sequences may be less")
    tokens = np.array([(start + piece)[:length] for piece in pieces])
    scored = np.broadcast_to(np.arange(length) >= len(start), tokens.shape)
    return Sequences(tokens, scored, np.zeros_like(tokens))


def make_sequences(args, predictor):
    """Returns (sequences to measure on, as many others, a description)."""
    count = 2 * args.sequences
    if args.text:
        made, label = (text_sequences(predictor, args.text, args.length, count),
                       os.path.basename(args.text))
    else:
        exam, label = score.make_exam(args)
        made = exam.sequences(args.length, count)
    return *(Sequences(made.tokens[i::2], made.scored[i::2], made.seen[i::2]) for i in (0, 1)), label


def bits_per_token(predictor, made, max_centroids=None, memory=None):
    """Returns bits per scored token."""
    logprobs = [predictor.predict(tokens, max_centroids, memory).logprobs[scored[1:]]
                for tokens, scored in zip(made.tokens, made.scored)]
    return -np.concatenate(logprobs).astype(np.float64).mean() / np.log(2)


def best_shares(curves):
    """Returns shares in steps of 1 / _STEPS, with mean 1, whose bits have the least sum.

    A curve is interpolated linearly over the logarithm of the share and made non-increasing: an
    apparent cost of more rows is chance."""
    n_steps = _STEPS * len(curves)
    shares = np.arange(1, n_steps + 1) / _STEPS
    best, choices = np.array([0.0] + [np.inf] * n_steps), []
    # best[n]: the best choice for the curves so far, with n steps between them
    for curve in curves:
        known = np.array(sorted(curve.items()))
        bits = np.interp(np.log(shares), np.log(known[:, 0]), np.minimum.accumulate(known[:, 1]))
        sums = np.full((n_steps + 1, n_steps), np.inf)
        for own in range(n_steps):
            sums[own + 1:, own] = best[:n_steps - own] + bits[own]
        choices.append(sums.argmin(1))
        best = sums.min(1)
    left, picked = n_steps, []
    for choice in reversed(choices):
        picked.append(float(shares[choice[left]]))
        left -= choice[left] + 1
    return picked[::-1]


def write_shares(folder, shares):
    """Replaces config.json atomically."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.setdefault("ovq", {})["shares"] = shares
    with open(path + ".partial", "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    os.replace(path + ".partial", path)


def measure(args):
    """Measures the curves, prints them, and returns the shares."""
    with served(args, None) as predictor:
        layers = [i for i, kind in enumerate(predictor.info().layer_types) if kind in ROW_LAYERS]
        bounded = [(layer, head) for layer in layers for head in range(args.heads)]
        if len(bounded) < 2:
            raise ValueError(f"{args.model}: by --memory {args.memory} {len(layers)} of its layers "
                             "have rows; there is nothing to share")
        measured, others, label = make_sequences(args, predictor)
        trial = Trial.of(len(bounded), args.centroids)
        rows = {share: max(2, round(share * args.centroids)) for share in ladder(len(bounded))}
        n_tokens, narrowest = measured.tokens.shape[1], trial.other_rows(min(rows.values()))
        if narrowest < n_tokens:
            raise ValueError(f"--length: {n_tokens} tokens; with {args.centroids} centroids the layers "
                             f"or heads that are not bounded hold {narrowest} at most")
        exact, exact_others = (bits_per_token(predictor, made, **MEMORIES[args.memory][1])
                               for made in (measured, others))
        unbounded = {share: bits_per_token(predictor, measured, trial.other_rows(n))
                     if args.memory == "paper" else exact for share, n in rows.items()}
        equal = bits_per_token(predictor, others, args.centroids)
    print(f"{label}, {args.sequences} sequences of {n_tokens} tokens: exact {exact:.3f} bits per "
          "scored token", flush=True)
    curves = []
    for i, (layer, head) in enumerate(bounded):
        with served(args, by_layer(trial.shares(i), args.heads)) as predictor:
            curves.append({share: bits_per_token(predictor, measured, trial.max_centroids(n)) -
                           unbounded[share] for share, n in rows.items()})
        name = f"layer {layer}" + (f", head {head}" if args.heads > 1 else "")
        print(f"{name}: bits that are lost with " + ", ".join(
            f"{rows[share]} rows: {bits:.4f}" for share, bits in curves[-1].items()), flush=True)
    shares = by_layer(best_shares(curves), args.heads)
    with served(args, shares) as predictor:
        shared = bits_per_token(predictor, others, args.centroids)
    print(f"shares {json.dumps(shares)}\n{args.sequences} other sequences: exact {exact_others:.3f}, "
          f"with equal shares {equal:.3f}, with these {shared:.3f} bits per scored token")
    return shares


def main(arguments):
    args = parse_args(arguments)
    shares = measure(args)
    if args.write:
        write_shares(args.model, shares)


if __name__ == "__main__":
    # turns SIGTERM into an exception, so that the server that this program started is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("shares.py: interrupted")
    except (ConfigError, DataError, PredictionError, TaskError, ValueError, OSError) as error:
        sys.exit(f"shares.py: {error}")
