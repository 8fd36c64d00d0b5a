"""Writes bounded.json and bounded.safetensors into folders of tests/golden/published: logits, in float64, of
these models with their softmax layers read through closest pairs, far fewer rows than tokens.

    /usr/bin/python3 training/tests/make_bounded_golden.py

As in make_closest_pair_golden.py, tokens are those of the first seed whose merges float32 does not change.
"""

import json
import os

import numpy as np
import torch

import support
from make_closest_pair_golden import Margins
from ovq import closest_pair
from ovq.hybrids import CHUNK_LEN, Granite, Qwen
from ovq.safetensors_io import save_safetensors

GOLDEN = os.path.join(os.path.dirname(support.TRAINING), "tests", "golden", "published")
# folder -> (its decoder, the server's --memory)
MODELS = {"granitemoehybrid-dense": (Granite, "closest-pair"),
          "qwen3_5-text": (Qwen, "closest-pair-all")}
MAX_ROWS = 32
LENGTHS = (CHUNK_LEN + 20, 3 * CHUNK_LEN + 15)
# Relative to the mean |key|^2. Float32 keys of these models are off by about 1e-6 of their size,
# squared distances by four times that; a different merge changes logits by more than 1e-3.
MARGIN = 3e-5


class RelativeMargins(Margins):
    def merge_closest(self):
        before = Margins.smallest
        Margins.smallest = np.inf
        size = np.square(self.keys[self.alive]).sum(-1).mean()
        super().merge_closest()
        Margins.smallest = min(before, Margins.smallest / size)


def make(model, seed):
    """Returns (sequences, logits by name) for a seed; the margin is Margins.smallest."""
    random = np.random.default_rng(seed)
    sequences = [random.integers(model.raw.vocab_size, size=n).tolist() for n in LENGTHS]
    Margins.smallest, Margins.n_merges, logits = np.inf, 0, {}
    for i, tokens in enumerate(sequences):
        logits[f"logits.{i}"] = model(torch.tensor([tokens]))[0].float()
        if Margins.smallest < MARGIN:
            break
    return sequences, logits


def main():
    closest_pair.Candidates = RelativeMargins
    for name, (decoder, memory) in MODELS.items():
        folder = os.path.join(GOLDEN, name)
        model = decoder(folder, MAX_ROWS)
        for seed in range(1000):
            sequences, logits = make(model, seed)
            if Margins.smallest >= MARGIN:
                break
        else:
            raise SystemExit(f"{name}: no seed has the margin")
        with open(os.path.join(folder, "bounded.json"), "w", encoding="utf-8") as file:
            json.dump({"memory": memory, "max_centroids": MAX_ROWS, "sequences": sequences}, file)
            file.write("\n")
        save_safetensors(os.path.join(folder, "bounded.safetensors"), logits)
        print(f"{name}: seed {seed}, {Margins.n_merges} merges, smallest margin "
              f"{Margins.smallest:.2e}")


if __name__ == "__main__":
    main()
