"""Measures a chat model on held-out conversations: the share of answers that greedy decoding gives exactly, by kind.

An answer is the text or the tool calls of one turn of the assistant, after the right conversation before it. The
baseline has no model: it gives the answer that followed the most similar message in training conversations."""

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


class Nearest:
    """Answers by the most similar message, in the share of tokens that both have, of `count` training conversations."""

    def __init__(self, tokenizer, length, count):
        self.start = tokenizer.added["<|im_start|>"]
        self.answers, self.sizes, self.places = [], [], collections.defaultdict(list)
        for seed in range(count):
            sample = make_sample(seed, length, tokenizer)
            for begin, end, _ in sample.answers:
                tokens = self.message_before(sample.ids, begin)
                for token in tokens:
                    self.places[token].append(len(self.answers))
                self.answers.append(sample.ids[begin:end])
                self.sizes.append(len(tokens))

    def message_before(self, ids, begin):
        """Returns the tokens of the message before the answer at `begin`."""
        opened = [i for i in range(begin) if ids[i] == self.start][-2:]
        return set(ids[opened[0]:opened[1]])

    def right(self, sample):
        found = []
        for begin, end, _ in sample.answers:
            tokens = self.message_before(sample.ids, begin)
            common = collections.Counter()
            for token in tokens:
                common.update(self.places[token])
            best = max(common, key=lambda i: common[i] / (self.sizes[i] + len(tokens) - common[i]))
            found.append(self.answers[best] == sample.ids[begin:end])
        return found


def measure(model, nearest, tokenizer, length, count):
    """Returns {kind: [answers, right ones, right ones of the baseline]} and prints nothing."""
    totals = collections.defaultdict(lambda: [0, 0, 0])
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        sample = make_sample(seed, length, tokenizer, True)
        for right, plain, (_, _, kind) in zip(answers_right(model, sample), nearest.right(sample), sample.answers):
            totals[kind] = [sum(pair) for pair in zip(totals[kind], (1, right, plain))]
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="model folder or checkpoint.pt")
    parser.add_argument("--tokenizer", help="tokenizer.json, if not in the model's folder")
    parser.add_argument("--lengths", default="768", help="most tokens of a conversation, several with commas")
    parser.add_argument("--count", type=int, default=500, help="conversations of each length")
    parser.add_argument("--nearest", type=int, default=2000, help="training conversations of the baseline")
    parser.add_argument("--compute-dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--out", required=True, help="CSV file")
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.tokenizer or os.path.join(args.model, "tokenizer.json"))
    model = load(args.model, DTYPES[args.compute_dtype])
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("length", "kind", "answers", "exact", "share", "nearest"))
        for length in map(int, args.lengths.split(",")):
            totals = measure(model, Nearest(tokenizer, length, args.nearest), tokenizer, length, args.count)
            totals["all"] = [sum(total[i] for total in totals.values()) for i in range(3)]
            for kind, (answers, right, plain) in sorted(totals.items()):
                writer.writerow((length, kind, answers, right, f"{right / answers:.3f}", f"{plain / answers:.3f}"))
            print(f"length {length}: {totals['all'][1]} of {totals['all'][0]} exact", flush=True)



if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        sys.exit(f"chat_measure.py: {error}")
