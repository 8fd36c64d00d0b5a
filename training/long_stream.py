"""Recall of a model in streams of up to a million tokens, by the position of the facts, as CSV.

One stream of K -> V | pairs, which sessions of a server process in parts. --pairs queried pairs are
placed at its start, as many in the middle of every prefix of --marks and as many at its end; all
else is filler:

    repeated  pairs drawn repeatedly from a pool of --pool: the stream has few distinct pairs
    fresh     a new random pair every time: all pairs of the stream are distinct

At every mark a session that has processed the stream so far is queried for all of these pairs, in
random order, and completes the values greedily. Then it is deleted, so that no answer affects a
later mark: every mark has a session of its own. A row of the CSV has the share of correct tokens in
the values of the pairs from token `said` on, and its standard error over pairs; tokens_per_second
measures the prefill of the stream only.
"""

import argparse
import contextlib
import csv
import os
import shlex
import signal
import sys
import time

import numpy as np

from ovq.config import ConfigError
from predictors import PredictionError, client_of, started_server
from score import listed, positive, with_config
from tasks import RecallTask, TaskError, json_fields, make_task, read_fields

COLUMNS = ("model", "memory", "config", "filler", "max_centroids", "seed", "mark", "said", "pairs", "accuracy",
           "error", "merged_tokens", "state_bytes", "tokens_per_second")
_PART_TOKENS = 1 << 14


def parse_args(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="folder of a recall model: one key, one value")
    add("--server", required=True, metavar="PATH", help="ovq-server to serve it with")
    add("--server-args", default="", help="its further flags, as one argument")
    add("--out", required=True, help="the CSV file")
    add("--memories", type=lambda text: text.split(","), default="closest-pair,paper",
        help="of the server's --memory, one after another; exact takes minutes beyond 2^16 tokens")
    add("--centroids", type=positive, default=2048, help="max_centroids of the sessions")
    add("--config", type=json_fields, default={}, metavar="JSON", help="as score.py has it")
    add("--marks", type=listed(positive), default="16384,65536,262144,1048576",
        help="tokens after which is asked")
    add("--pairs", type=positive, default=16, help="said at each place")
    add("--filler", choices=("repeated", "fresh"), default="repeated")
    add("--pool", type=positive, default=64, help="distinct pairs of repeated filler")
    add("--seed", type=int, default=0, help="of the stream")
    return parser.parse_args(arguments)


def places(marks, n_pairs):
    """Returns the indices at which n_pairs pairs each are placed; marks are in pairs."""
    found = sorted({0, *(place for mark in marks for place in (mark // 2, mark - n_pairs))})
    if any(after - before < n_pairs for before, after in zip(found, found[1:])):
        raise ValueError(f"--marks: too close together for {n_pairs} pairs each")
    return found


def make_stream(task, args, random):
    """Returns (pairs [n, pair_tokens], places): the stream, and where the queried pairs are in it.
    """
    marks = [mark // task.pair_tokens for mark in args.marks]
    said, n_pairs = places(marks, args.pairs), max(marks)
    n_told = len(said) * args.pairs
    n_filler = n_pairs if args.filler == "fresh" else args.pool
    if task.n_symbols ** task.key_tokens < n_told + n_filler:
        raise ValueError(f"--filler: {args.filler} of {n_pairs} pairs needs {n_told + n_filler} distinct keys, and the task has "
                         f"{task.n_symbols ** task.key_tokens}")
    keys = random.permutation(task.n_symbols ** task.key_tokens)[:n_told + n_filler]
    values = random.integers(task.n_symbols ** task.value_tokens, size=len(keys))

    def digits(numbers, n_digits):
        return numbers[:, None] // task.n_symbols ** np.arange(n_digits) % task.n_symbols

    pairs = task.pairs(digits(keys, task.key_tokens), digits(values, task.value_tokens))
    filler = n_told + (np.arange(n_pairs) if args.filler == "fresh"
                       else random.integers(args.pool, size=n_pairs))
    for i, place in enumerate(said):
        filler[place:place + args.pairs] = np.arange(i * args.pairs, (i + 1) * args.pairs)
    return pairs[filler], said


class Reader:
    """A server session that reads token ids and answers greedily; `with` deletes it."""

    def __init__(self, client, memory, max_centroids):
        self._client = client
        if memory == "exact":  # exact memory has no slots to count
            max_centroids = None
        self._id = client.create_session(memory=memory, max_centroids=max_centroids).session_id

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.delete_session(self._id)

    def read(self, tokens, n_answer=0):
        """Returns (the n_answer tokens that follow, the usage)."""
        _, *chunks, finished = self._client.generate(
            tokens.tolist(), session_id=self._id, max_tokens=n_answer, temperature=0,
            ignore_eos=True)
        return [token for chunk in chunks for token in chunk.token_ids], finished.usage


def ask(reader, task, pairs, random):
    """Returns the share of every pair's value that was recalled, [n_pairs]."""
    right, arrow = np.zeros(len(pairs)), task.key_tokens
    before = np.array([task.n_symbols + 2])  # `?`, then the `|` that ends each answer
    for i in random.permutation(len(pairs)):
        answer, _ = reader.read(np.concatenate((before, pairs[i, :arrow + 1])), task.value_tokens)
        right[i] = np.mean(np.array(answer) == pairs[i, arrow + 1:-1])
        before = pairs[i, -1:]
    return right


def examine(client, task, stream, said, mark, memory, args):
    """Returns the CSV rows of one mark; positions are in tokens."""
    n_read = mark // task.pair_tokens
    tokens = stream[:n_read].ravel()
    with Reader(client, memory, args.centroids) as reader:
        started = time.monotonic()
        for begin in range(0, len(tokens), _PART_TOKENS):
            _, usage = reader.read(tokens[begin:begin + _PART_TOKENS])
        seconds = time.monotonic() - started
        told = [place for place in said if place + args.pairs <= n_read]
        asked = np.concatenate([stream[place:place + args.pairs] for place in told])
        right = ask(reader, task, asked, np.random.default_rng((args.seed, mark)))
    right = right.reshape(-1, args.pairs)
    errors = right.std(axis=1, ddof=1) / args.pairs ** 0.5
    print(f"{memory} after {mark} tokens: " + ", ".join(
        f"{100 * share:.0f}% of {place * task.pair_tokens}" for place, share in
        zip(told, right.mean(axis=1))) + f"; {len(tokens) / seconds:.0f} tokens/s", flush=True)
    return [{"memory": memory, "mark": mark, "said": place * task.pair_tokens, "pairs": args.pairs,
             "accuracy": f"{share:.6f}", "error": f"{error:.6f}",
             "merged_tokens": usage.merged_tokens, "state_bytes": usage.state_bytes,
             "tokens_per_second": f"{len(tokens) / seconds:.1f}"}
            for place, share, error in zip(told, right.mean(axis=1), errors)]


def run(args, stack):
    name, changed = os.path.basename(os.path.abspath(args.model)), ""
    task = make_task(read_fields(args.model))
    if not isinstance(task, RecallTask) or task.copies != 1 or args.pairs < 2:
        raise ValueError("--model: a model of basic recall, and at least 2 --pairs")
    if args.config:
        parent, args.model, changed = with_config(args.model, args.config)
        stack.enter_context(parent)
    stream, said = make_stream(task, args, np.random.default_rng((args.seed, 1)))
    flags = ["--memory", ",".join(args.memories), "--max-context", str(2 * max(args.marks)),
             *shlex.split(args.server_args)]
    address = stack.enter_context(started_server(args.server, args.model, flags))
    client, client_error = stack.enter_context(client_of(address))
    common = {"model": name, "config": changed, "filler": args.filler,
              "max_centroids": args.centroids, "seed": args.seed}
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for memory in args.memories:
            for mark in sorted(args.marks):
                try:
                    rows = examine(client, task, stream, said, mark, memory, args)
                except client_error as error:
                    raise PredictionError(str(error)) from error
                writer.writerows([{**common, **row} for row in rows])
                file.flush()


def main(arguments=None):
    with contextlib.ExitStack() as stack:
        run(parse_args(arguments), stack)


if __name__ == "__main__":
    # turns SIGTERM into an exception, so that the server that this program started is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("long_stream.py: interrupted")
    except (ConfigError, PredictionError, TaskError, ValueError, OSError) as error:
        sys.exit(f"long_stream.py: {error}")
