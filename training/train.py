"""Trains a native-format model on the byte corpus; checkpoints, resumes, draws its curve."""

import argparse
import concurrent.futures
import csv
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from data import DEFAULT_ROOT, Corpus, DataError, WindowSampler, context
from ovq.config import ConfigError, config_to_dict, load_config
from ovq.measure import bits_per_byte, token_bits
from ovq.model import DTYPES, OvqModel
from plots import plot_learning_curve
from schedule import context_length, learning_rate, parse_phases

CHECKPOINT = "checkpoint.pt"
# A row of the history every --log-steps; held_out_bpb only every --eval-steps.
CURVE_COLUMNS = ("step", "tokens", "seconds", "context_length", "train_bits_per_token",
                 "held_out_bpb")
# The held-out sample that training reports on: this many contexts of this length, spread evenly.
_SAMPLE_LENGTH, _SAMPLE_CONTEXTS = 1024, 32


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config.json of the model to train")
    parser.add_argument("--run", required=True, help="folder for checkpoints, curve and log")
    parser.add_argument("--data-root", default=DEFAULT_ROOT, help="folder of the standard library")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="length of the run in steps")
    length.add_argument("--minutes", type=float, help="length of the run in minutes: the schedule "
                        "follows the clock, for machines that are shared")
    parser.add_argument("--batch-tokens", type=int, default=4096,
                        help="tokens in a step, but never less than one context a worker")
    parser.add_argument("--workers", type=int, default=2, help="threads that share a step's "
                        "contexts; each runs its operations on OMP_NUM_THREADS threads")
    parser.add_argument("--phases", help="context lengths and their shares of the run, in order",
                        default="512:0.37,1024:0.13,2048:0.1,4096:0.13,8192:0.1,16384:0.17")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--beta-lr-scale", type=float, default=5.0,
                        help="learning rate of the attention's beta relative to --lr")
    parser.add_argument("--warmup-steps", type=int, default=100)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compute-dtype", default="bfloat16", choices=("bfloat16", "float32"),
                        help="dtype of the matrix products; weights are always float32")
    parser.add_argument("--log-steps", type=int, default=20)
    parser.add_argument("--eval-steps", type=int, default=200)
    parser.add_argument("--checkpoint-minutes", type=float, default=3.0)
    parser.add_argument("--resume", action="store_true", help="continue the run in --run")
    return parser.parse_args()


def make_optimizer(model, args):
    """Weight decay on matrices only; beta, whose natural scale is 8, learns faster."""
    matrices, vectors, betas = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith("beta"):
            betas.append(parameter)
        else:
            (matrices if parameter.dim() > 1 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": args.weight_decay, "lr_scale": 1.0},
              {"params": vectors, "weight_decay": 0.0, "lr_scale": 1.0},
              {"params": betas, "weight_decay": 0.0, "lr_scale": args.beta_lr_scale}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), foreach=True)


def held_out_sample(corpus):
    """(inputs, targets) [contexts, length]: contexts spread evenly over the held-out text."""
    stream = np.concatenate(list(corpus.held_out.values()))
    begins = np.linspace(1, len(stream) - _SAMPLE_LENGTH, _SAMPLE_CONTEXTS).astype(np.int64)
    return tuple(np.stack(side) for side in
                 zip(*(context(stream, begin, _SAMPLE_LENGTH) for begin in begins)))


class Trainer:
    """One run: its model, its place in the data and the schedule, its history."""

    def __init__(self, args, corpus):
        self.args, self.phases = args, parse_phases(args.phases)
        torch.manual_seed(args.seed)
        self.config = load_config(args.config)
        self.model = OvqModel(self.config, DTYPES[args.compute_dtype]).to(args.device)
        self.optimizer = make_optimizer(self.model, args)
        self.sampler = WindowSampler(corpus.train, args.seed)
        self.fingerprint, self.sample = corpus.fingerprint, held_out_sample(corpus)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.history = []  # rows of CURVE_COLUMNS
        self.workers = concurrent.futures.ThreadPoolExecutor(args.workers)

    @property
    def progress(self):
        if self.args.steps:
            return self.step / self.args.steps
        return self.seconds / (60 * self.args.minutes)

    def _accumulate(self, inputs, targets, n_tokens):
        """Adds the gradients of some of a step's contexts; returns their loss in bits."""
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten(),
                               reduction="sum")
        (loss / n_tokens).backward()
        return loss.item() / math.log(2)

    def _all_gradients(self, inputs, targets):
        """Workers take a share of the contexts each and meet once a step.

        On a shared machine this is several times faster than threads inside each operation,
        which wait for one another some thousand times a step.
        """
        shares = zip(inputs.chunk(self.args.workers), targets.chunk(self.args.workers))
        losses = [self.workers.submit(self._accumulate, *share, inputs.numel())
                  for share in shares]
        return sum(loss.result() for loss in losses) / inputs.numel()

    def train_step(self):
        """One optimizer step; returns the mean loss in bits per token and the context length."""
        length = context_length(self.phases, self.progress)
        n_contexts = max(self.args.workers, self.args.batch_tokens // length)
        inputs, targets = (torch.from_numpy(side).to(self.args.device) for side in
                           self.sampler.next(length, n_contexts))
        rate = learning_rate(self.args.lr, self.progress, self.step, self.args.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        bits = self._all_gradients(inputs, targets)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.tokens += inputs.numel()
        return bits, length

    def held_out_bpb(self):
        """A few contexts at a time: all of them at once would need the memory of four steps."""
        inputs, targets = self.sample
        bits = self.workers.map(lambda i: token_bits(self.model, inputs[i:i + 4],
                                                     targets[i:i + 4]),
                                range(0, len(inputs), 4))
        return bits_per_byte(np.concatenate(list(bits)), targets)

    def save(self):
        """Replaces the checkpoint in one rename: a crash leaves the old one or the new one."""
        path = os.path.join(self.args.run, CHECKPOINT)
        torch.save({"config": config_to_dict(self.config), "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(), "sampler": self.sampler.state(),
                    "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
                    "history": self.history, "corpus": self.fingerprint,
                    "args": vars(self.args)}, path + ".partial")
        os.replace(path + ".partial", path)
        self.write_curve()

    def restore(self):
        path = os.path.join(self.args.run, CHECKPOINT)
        saved = torch.load(path, map_location=self.args.device)
        if saved["corpus"] != self.fingerprint:
            raise ValueError(f"{path}: trained on another corpus ({saved['corpus'][:16]}...)")
        if saved["config"] != config_to_dict(self.config):
            raise ValueError(f"{path}: its model differs from --config {self.args.config}")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.sampler.restore(saved["sampler"])
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]
        self.history = saved["history"]

    def write_curve(self):
        path = os.path.join(self.args.run, "curve.csv")
        with open(path + ".partial", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(CURVE_COLUMNS)
            writer.writerows([f"{value:.4f}" if isinstance(value, float) else value
                              for value in row] for row in self.history)
        os.replace(path + ".partial", path)
        plot_learning_curve(os.path.join(self.args.run, "curve.png"),
                            [(row[1], row[4]) for row in self.history],
                            [(row[1], row[5]) for row in self.history if row[5] is not None])

    def report(self, length, bits, tokens_per_second):
        """A history row and a line of progress; every --eval-steps with the held-out sample."""
        due = self.step % self.args.eval_steps < self.args.log_steps
        held_out = self.held_out_bpb() if due else None
        self.history.append((self.step, self.tokens, round(self.seconds, 1), length, bits,
                             held_out))
        eta = self.seconds * (1 / self.progress - 1) / 60
        text = "" if held_out is None else f"  held-out {held_out:.4f} bits/byte"
        print(f"step {self.step}  {100 * self.progress:.1f}%  context {length}  "
              f"{bits:.4f} bits/token  {tokens_per_second:.0f} tokens/s  "
              f"{self.tokens / 1e6:.2f}M tokens  {eta:.0f} min left{text}", flush=True)

    def run(self):
        clock = saved_at = time.monotonic()
        recent, recent_tokens, recent_seconds = [], self.tokens, self.seconds
        while self.progress < 1:
            bits, length = self.train_step()
            recent.append(bits)
            now = time.monotonic()
            self.seconds, clock = self.seconds + now - clock, now
            if self.step % self.args.log_steps == 0 or self.progress >= 1:
                speed = (self.tokens - recent_tokens) / (self.seconds - recent_seconds)
                self.report(length, sum(recent) / len(recent), speed)
                recent, recent_tokens, recent_seconds = [], self.tokens, self.seconds
            if now - saved_at > 60 * self.args.checkpoint_minutes:
                self.save()
                saved_at = now
        self.save()


def main():
    args = parse_args()
    checkpoint = os.path.join(args.run, CHECKPOINT)
    if os.path.exists(checkpoint) and not args.resume:
        raise ValueError(f"{checkpoint} exists: pass --resume to continue it, or another --run")
    os.makedirs(args.run, exist_ok=True)
    trainer = Trainer(args, Corpus(args.data_root))
    if args.resume:
        trainer.restore()
    else:
        with open(os.path.join(args.run, "args.json"), "w", encoding="utf-8") as file:
            json.dump(vars(args), file, indent=2)
    n_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{n_parameters} parameters, corpus {trainer.fingerprint[:16]}, "
          f"{torch.get_num_threads()} threads", flush=True)
    trainer.run()


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, DataError, ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
