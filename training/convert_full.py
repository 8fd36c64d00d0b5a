"""Gives the full attention layers (without positions) of a trained model OVQ dictionaries, by a short leg of training.

Both layer types have the same tensors, so that the weights can be used as they are; what the leg teaches is to live with
few slots. The model's task.json says what it is trained and measured on."""

import argparse
import dataclasses
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

from ovq.config import ConfigError
from ovq.model import load_model, write_json
from ovq_torch import Decoder
from sources import NO_TARGET, TaskSource, predicted_right
from tasks import TaskError, make_task, read_fields


def converted(folder, chunk_size, max_centroids):
    """Returns the model in `folder` as a Decoder with OVQ layers in place of full attention."""
    source = load_model(folder)
    kinds = source.config.layer_types
    if "full_attention" not in kinds:
        raise ValueError(f"{folder}: layer_types: there is no full_attention layer to convert")
    kinds = tuple("ovq_attention" if kind == "full_attention" else kind for kind in kinds)
    model = Decoder(dataclasses.replace(source.config, layer_types=kinds, chunk_size=chunk_size,
                                        max_centroids=max_centroids))
    model.load_state_dict(source.state_dict())
    return model


def accuracy(model, task, length, n_sequences=16):
    """Returns the share of the scored tokens of held-out sequences that are predicted right."""
    made = task.sequences(length, n_sequences, np.random.default_rng(1 << 64))
    return predicted_right(model, made.tokens, made.scored).mean()


def train(model, task, args):
    source = TaskSource(task, args.length, args.seed, variety=0.4, unscored_weight=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.98))
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 10) * (1 - step / args.steps)
        inputs, targets, weights = (torch.from_numpy(side) for side in source.next(args.length, args.batch, 1.0))
        losses = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none",
                                 ignore_index=NO_TARGET)
        loss = losses.dot(weights.flatten()) / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 10 == 0:
            print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)
    wrong = [name for name, weights in model.named_parameters() if not weights.isfinite().all()]
    if wrong:
        raise ValueError(f"--lr: {args.lr}: {wrong[0]} is not finite behind the leg; try a lower one")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="native model folder with full_attention layers and a task.json")
    parser.add_argument("--out", required=True, help="folder of the converted model")
    parser.add_argument("--chunk-size", type=int, default=32)
    parser.add_argument("--max-centroids", type=int, default=128)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fields = read_fields(args.model)
    task = make_task(fields)
    model = converted(args.model, args.chunk_size, args.max_centroids)
    before = accuracy(model, task, args.length)
    train(model, task, args)
    print(f"right: {before:.3f} through {args.max_centroids} slots before, {accuracy(model, task, args.length):.3f} after")
    model.save_native(args.out)
    write_json(os.path.join(args.out, "task.json"), {"task": fields})


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, TaskError, ValueError, OSError) as error:
        sys.exit(f"convert_full.py: {error}")
