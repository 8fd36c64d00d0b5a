"""Measures how a model's layers should share a session's rows, and writes ovq.shares.

Layers need rows unequally: while one answers from a handful, another loses something with every row it
does not get. The model reads sequences of its task, or held-out documents, one layer bounded to a
share of --centroids and all others exact, for a ladder of shares; what that costs, in bits per scored
token, is the layer's own curve. The shares are those whose costs have the smallest sum, in steps
of 1/16. Prints the curves; --write changes the folder's config.json.
"""

import argparse
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

import score
from data import DEFAULT_ROOT, DataError
from ovq.config import DICTIONARY_LAYER_TYPES, ConfigError
from ovq.model import load_model
from tasks import TaskError

_STEPS = 16  # of a share
_ENDLESS = 1e9  # share of a layer that is exact
RULES = {"paper": "dictionary", "closest-pair": "closest_pair"}


def parse_args(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="native model folder with ovq_attention or full_attention")
    add("--rule", choices=RULES, default="paper", help="by which rows come about; the numpy form of "
        "closest-pair takes a hundred times longer")
    add("--task", type=json.loads, default={}, help="JSON: fields in place of task.json's")
    add("--length", type=score.positive, default=2048, help="longest sequence, in tokens")
    add("--centroids", type=score.positive, default=256, help="max_centroids that is shared out")
    add("--sequences", type=score.positive, default=4)
    add("--seed", type=int, default=1, help="of the sequences; score.py's are 0's")
    add("--data-root", default=DEFAULT_ROOT, help="folder of the standard library (byte models)")
    add("--write", action="store_true", help="the shares into the folder's config.json")
    return parser.parse_args(arguments)


def ladder(n_layers):
    """Shares that are tried: powers of two, and all there is for one layer."""
    return sorted({2.0 ** -i for i in range(5)} | {2.0 ** i for i in range(n_layers.bit_length())
                                                   if 2 ** i < n_layers} | {float(n_layers)})


@torch.no_grad()
def bits_per_token(model, made, max_centroids):
    """Of the scored tokens, each sequence read on its own."""
    bits = []
    for tokens, scored in zip(torch.from_numpy(made.tokens), torch.from_numpy(made.scored)):
        logits = model(tokens[None, :-1], max_centroids)[0]
        bits.append(F.cross_entropy(logits[scored[1:]], tokens[1:][scored[1:]], reduction="none"))
    return torch.cat(bits).mean().item() / np.log(2)


def measure(model, made, max_centroids, rule):
    """(exact bits, {share: bits} of each dictionary layer bounded alone)."""
    layers = [layer.self_attn for layer, kind in zip(model.model.layers, model.config.layer_types)
              if kind in DICTIONARY_LAYER_TYPES]
    model.read_through("window")  # which is exact attention where it holds all
    for layer in layers:
        layer.share = _ENDLESS
    exact, curves = bits_per_token(model, made, max_centroids), []
    for layer in layers:
        layer.memory, curve = RULES[rule], {}
        for layer.share in ladder(len(layers)):
            curve[layer.share] = bits_per_token(model, made, max_centroids)
        curves.append(curve)
        layer.memory, layer.share = "window", _ENDLESS
    return exact, curves


def best_shares(curves):
    """Shares in steps of 1 / _STEPS, 1 in the mean, whose bits have the least sum.

    Between the shares that were measured a curve is a line over the logarithm, and no curve rises:
    what more rows seem to cost is chance.
    """
    n_steps = _STEPS * len(curves)
    shares = np.arange(1, n_steps + 1) / _STEPS
    best, choices = np.array([0.0] + [np.inf] * n_steps), []
    for curve in curves:  # best[n]: of the layers so far, with n steps between them
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
    """Replaces config.json in one rename."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.setdefault("ovq", {})["shares"] = shares
    with open(path + ".partial", "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    os.replace(path + ".partial", path)


def main(arguments):
    args = parse_args(arguments)
    exam, label = score.make_exam(args)
    model = load_model(args.model)
    made = exam.sequences(args.length, args.sequences)
    exact, curves = measure(model, made, args.centroids, args.rule)
    print(f"{label}, {args.sequences} sequences of {made.tokens.shape[1]} tokens: exact "
          f"{exact:.3f} bits per scored token")
    shares = best_shares(curves)
    for layer, (share, curve) in enumerate(zip(shares, curves)):
        print(f"dictionary layer {layer}: share {share:g}; bits with " + ", ".join(
            f"{at * args.centroids:.0f}: {bits:.3f}" for at, bits in curve.items()))
    if args.write:
        write_shares(args.model, shares)
    return 0


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ConfigError, DataError, TaskError, ValueError, OSError) as error:
        sys.exit(f"shares.py: {error}")
