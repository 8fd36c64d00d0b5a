"""Measures a chat model on held-out conversations: the share of answers that greedy decoding gives exactly, by kind.

An answer is the text or the tool calls of one turn of the assistant, after the right conversation before it."""

import argparse
import collections
import csv
import os
import sys

import torch

from chat.bpe import load_tokenizer
from conversations import make_sample
from ovq.config import ConfigError, config_from_dict
from ovq.model import DTYPES, OvqModel, load_model
from sources import answers_right

FIRST_SEED = 1000  # the trainer's own measure has the seeds below


def load(path, dtype):
    """Returns the model of a folder or of a checkpoint.pt."""
    if os.path.isdir(path):
        return load_model(path, dtype)
    saved = torch.load(path, map_location="cpu")
    model = OvqModel(config_from_dict(saved["config"]), dtype)
    model.load_state_dict(saved["model"])
    return model


def measure(model, tokenizer, length, count):
    """Returns {kind: [right answers, answers]} and prints nothing."""
    totals = collections.defaultdict(lambda: [0, 0])
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        sample = make_sample(seed, length, tokenizer, True)
        for right, (_, _, kind) in zip(answers_right(model, sample), sample.answers):
            totals[kind][0] += right
            totals[kind][1] += 1
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="model folder or checkpoint.pt")
    parser.add_argument("--tokenizer", help="tokenizer.json, if not in the model's folder")
    parser.add_argument("--lengths", default="768", help="most tokens of a conversation, several with commas")
    parser.add_argument("--count", type=int, default=500, help="conversations of each length")
    parser.add_argument("--compute-dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--out", required=True, help="CSV file")
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.tokenizer or os.path.join(args.model, "tokenizer.json"))
    model = load(args.model, DTYPES[args.compute_dtype])
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("length", "kind", "answers", "exact", "share"))
        for length in map(int, args.lengths.split(",")):
            totals = measure(model, tokenizer, length, args.count)
            totals["all"] = [sum(total[i] for total in totals.values()) for i in (0, 1)]
            for kind, (right, answers) in sorted(totals.items()):
                writer.writerow((length, kind, answers, right, f"{right / answers:.3f}"))
            print(f"length {length}: {totals['all'][0]} of {totals['all'][1]} exact", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        sys.exit(f"chat_measure.py: {error}")
