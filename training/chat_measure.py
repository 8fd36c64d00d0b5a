"""Measures a chat model on held-out conversations: the share of answers that greedy decoding gives exactly, by kind.

An answer is the text or the tool calls of one turn of the assistant, after the right conversation before it. The
baseline has no model: it gives the answer that followed the most similar message in training conversations.

Of --model the weights are computed here, of --server by an ovq-server, which is several times faster."""

import argparse
import collections
import csv
import json
import os
import sys
import urllib.error
import urllib.request

from agent_conversations import AgentConversation
from chat.bpe import load_tokenizer
from checkpoints import read_checkpoint
from conversations import Conversation, make_sample
from ovq.config import ConfigError, config_from_dict
from ovq.model import DTYPES, OvqModel, load_model
from sources import answers_right

FIRST_SEED = 1000  # the trainer's own measure has the seeds below


def load(path, dtype):
    """Returns the model of a folder or of a checkpoint.pt."""
    if os.path.isdir(path):
        return load_model(path, dtype)
    saved = read_checkpoint(path, ("config", "model"))
    model = OvqModel(config_from_dict(saved["config"]), dtype)
    model.load_state_dict(saved["model"])
    return model


class Served:
    """The model of an ovq-server, at the server's HTTP address."""

    def __init__(self, address, tokenizer):
        self.address, self.tokenizer = address, tokenizer

    def answers_right(self, sample):
        """Returns, for every answer of a Sample, whether greedy decoding gives exactly it."""
        return [self._written(sample.ids[:begin], end - begin) == ("stop", self.tokenizer.decode(sample.ids[begin:end - 1]))
                for begin, end, _ in sample.answers]

    def _written(self, ids, most):
        body = {"prompt": ids, "max_tokens": most, "temperature": 0}
        request = urllib.request.Request(f"{self.address}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            choice = json.load(answer)["choices"][0]
        return choice["finish_reason"], choice["text"]


class Computed:
    """The model of a folder or of a checkpoint.pt."""

    def __init__(self, path, dtype):
        self.model = load(path, dtype)

    def answers_right(self, sample):
        return answers_right(self.model, sample)


class Nearest:
    """Answers by the most similar message, in the share of tokens that both have, of `count` training conversations."""

    def __init__(self, tokenizer, length, count, conversation):
        self.start = tokenizer.added["<|im_start|>"]
        self.answers, self.sizes, self.places = [], [], collections.defaultdict(list)
        for seed in range(count):
            sample = make_sample(seed, length, tokenizer, False, conversation)
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


def measure(model, nearest, tokenizer, length, count, conversation):
    """Returns {kind: [answers, right ones, right ones of the baseline]} and prints nothing."""
    totals = collections.defaultdict(lambda: [0, 0, 0])
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        sample = make_sample(seed, length, tokenizer, True, conversation)
        for right, plain, (_, _, kind) in zip(model.answers_right(sample), nearest.right(sample), sample.answers):
            totals[kind] = [sum(pair) for pair in zip(totals[kind], (1, right, plain))]
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", help="model folder or checkpoint.pt")
    parser.add_argument("--server", help="an ovq-server's HTTP address, such as http://127.0.0.1:8080")
    parser.add_argument("--tokenizer", help="tokenizer.json, if not in the model's folder")
    parser.add_argument("--lengths", default="768", help="most tokens of a conversation, several with commas")
    parser.add_argument("--count", type=int, default=500, help="conversations of each length")
    parser.add_argument("--agents", action="store_true", help="conversations of the shape that coding agents have")
    parser.add_argument("--nearest", type=int, default=2000, help="training conversations of the baseline")
    parser.add_argument("--compute-dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--out", required=True, help="CSV file")
    args = parser.parse_args()
    if args.model is None and (args.server is None or args.tokenizer is None):
        raise ValueError("--model is needed, or --server and --tokenizer")
    tokenizer = load_tokenizer(args.tokenizer or os.path.join(args.model, "tokenizer.json"))
    model = Served(args.server, tokenizer) if args.server else Computed(args.model, DTYPES[args.compute_dtype])
    conversation = AgentConversation if args.agents else Conversation
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("length", "kind", "answers", "exact", "share", "nearest"))
        for length in map(int, args.lengths.split(",")):
            nearest = Nearest(tokenizer, length, args.nearest, conversation)
            totals = measure(model, nearest, tokenizer, length, args.count, conversation)
            totals["all"] = [sum(total[i] for total in totals.values()) for i in range(3)]
            for kind, (answers, right, plain) in sorted(totals.items()):
                writer.writerow((length, kind, answers, right, f"{right / answers:.3f}", f"{plain / answers:.3f}"))
            print(f"length {length}: {totals['all'][1]} of {totals['all'][0]} exact", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, urllib.error.URLError, OSError) as error:
        sys.exit(f"chat_measure.py: {error}")
