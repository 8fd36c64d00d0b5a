"""Held-out bits per byte of a native model folder, by context length and dictionary size.

All context lengths read exactly the same held-out bytes: each held-out module or package is cut to
a whole number of the longest contexts, and shorter contexts divide those."""

import argparse
import concurrent.futures
import csv
import os
import sys
import time

import numpy as np

from data import DEFAULT_ROOT, Corpus, DataError, Documents, context
from devices import device_name
from ovq.config import ConfigError
from ovq.measure import bits_per_byte, token_bits
from ovq.model import DTYPES, load_model
from plots import plot_context_lengths, require

# Tokens in one forward pass; a longer context gets a pass of its own.
_PASS_TOKENS = 4096


def integers(text):
    values = [int(entry) for entry in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: every value must be positive")
    return values


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="native model folder")
    parser.add_argument("--out", required=True, help="folder for evaluation.csv, .png and .md")
    parser.add_argument("--data-root", default=DEFAULT_ROOT, help="folder of the standard library")
    parser.add_argument("--documents", action="store_true", help="read the held-out documents "
                        "(see data.py) and not the held-out files")
    parser.add_argument("--lengths", type=integers, default="512,1024,2048,4096,8192,16384,32768",
                        help="context lengths in tokens; each must divide the longest")
    parser.add_argument("--scales", type=integers, default="1,2,4",
                        help="multiples of the model's max_centroids")
    parser.add_argument("--per-module", type=int, default=0,
                        help="longest contexts read from each held-out module, 0: all it has")
    parser.add_argument("--workers", type=int, default=2, help="passes that run side by side, "
                        "each on OMP_NUM_THREADS threads")
    parser.add_argument("--compute-dtype", default="float32", choices=("float32", "bfloat16"),
                        help="dtype of the matrix products")
    parser.add_argument("--device", type=device_name, default="cpu")
    return parser.parse_args()


def held_out_contexts(corpus, length, longest, per_module):
    """Returns (inputs, targets) [n_contexts, length] over the same bytes for every length."""
    pairs = []
    for stream in corpus.held_out.values():
        n_longest = (len(stream) - 1) // longest  # the context's own bos replaces the first token
        end = longest * (min(n_longest, per_module) if per_module else n_longest)
        pairs += [context(stream, 1 + begin, length) for begin in range(0, end, length)]
    if not pairs:
        raise ValueError(f"--lengths: no held-out module has {longest} tokens")
    return tuple(np.stack(side) for side in zip(*pairs))


def measure(model, inputs, targets, max_centroids, workers):
    """Returns the bits of every target, [n_contexts, length]."""
    rows = max(1, _PASS_TOKENS // inputs.shape[1])
    passes = workers.map(lambda i: token_bits(model, inputs[i:i + rows], targets[i:i + rows],
                                              max_centroids), range(0, len(inputs), rows))
    return np.concatenate(list(passes))


def evaluate(model, contexts, sizes, workers):
    """Maps {length: (inputs, targets)} to {size: [bits per byte by length]}."""
    table = {size: [] for size in sizes}
    for length, (inputs, targets) in contexts.items():
        for size in sizes:
            started = time.monotonic()
            bits = measure(model, inputs, targets, size, workers)
            table[size].append(bits_per_byte(bits, targets))
            print(f"context {length}  {size} centroids  {table[size][-1]:.4f} bits/byte  "
                  f"{bits.size / (time.monotonic() - started):.0f} tokens/s", flush=True)
    return table


def markdown_table(lengths, table):
    lines = ["| max_centroids | " + " | ".join(map(str, lengths)) + " |",
             "|---" * (len(lengths) + 1) + "|"]
    lines += [f"| {size} | " + " | ".join(f"{value:.3f}" for value in values) + " |"
              for size, values in table.items()]
    return "\n".join(lines) + "\n"


def write_results(out, lengths, table, n_tokens):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "evaluation.csv"), "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("max_centroids", "context_length", "bits_per_byte"))
        for size, values in table.items():
            writer.writerows((size, length, f"{value:.4f}")
                             for length, value in zip(lengths, values))
    plot_context_lengths(os.path.join(out, "evaluation.png"),
                         {size: list(zip(lengths, values)) for size, values in table.items()})
    with open(os.path.join(out, "evaluation.md"), "w", encoding="utf-8") as file:
        file.write("Held-out bits per byte by context length, over the same "
                   f"{n_tokens} tokens:\n\n{markdown_table(lengths, table)}")


def main():
    args = parse_args()
    require()
    lengths = sorted(args.lengths)
    for length in lengths:
        if lengths[-1] % length:
            raise ValueError(f"--lengths: {length} does not divide {lengths[-1]}")
    model = load_model(args.model, DTYPES[args.compute_dtype]).to(args.device)
    if model.config.tokenizer != "bytes":
        raise ValueError(f"{args.model}: tokenizer is not \"bytes\"")
    sizes = [scale * model.config.max_centroids for scale in args.scales]
    corpus = (Documents if args.documents else Corpus)(args.data_root)
    contexts = {length: held_out_contexts(corpus, length, lengths[-1], args.per_module)
                for length in lengths}
    with concurrent.futures.ThreadPoolExecutor(args.workers) as workers:
        table = evaluate(model, contexts, sizes, workers)
    write_results(args.out, lengths, table, contexts[lengths[-1]][0].size)


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, DataError, ValueError, OSError) as error:
        sys.exit(f"evaluate.py: {error}")
