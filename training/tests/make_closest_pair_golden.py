"""Writes tests/golden/native/sw-closest-pair: a small random model and its logits in float64.

    /usr/bin/python3 training/tests/make_closest_pair_golden.py

Merges are discrete: where two pairs are as good as equally close, float32 may merge the other one.
So seeds are tried until every merge of every sequence has a margin that float32 cannot cross.
"""

import json
import os

import numpy as np
import torch

import support
from ovq import closest_pair
from ovq.config import config_from_dict, config_to_dict
from ovq.model import OvqModel
from ovq.safetensors_io import save_safetensors

FOLDER = os.path.join(os.path.dirname(support.TRAINING), "tests", "golden", "native",
                      "sw-closest-pair")
LENGTHS = (1, 7, 16, 33, 57, 120, 200)
OVERRIDE = 40
# Rows are means of float32 keys and values below 4 in size, so their squared distances are off by
# about 1e-6; a different merge changes logits by more than 1e-3.
MARGIN = 5e-5
CONFIG = {"model_type": "ovq_hybrid", "vocab_size": 101, "hidden_size": 48,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "value_head_dim": 24, "intermediate_size": 64, "sliding_window": 16,
          "layer_types": ["sliding_attention", "ovq_attention"] * 2,
          "ovq": {"chunk_size": 16, "max_centroids": 24, "update": "closest-pair"}}


class Margins(closest_pair.Candidates):
    """Records the smallest difference between the closest pair and the next one."""
    smallest, n_merges = np.inf, 0

    def merge_closest(self):
        distances = np.sort(self.distances[np.isfinite(self.distances)])
        if len(distances) > 1:
            Margins.smallest = min(Margins.smallest, distances[1] - distances[0])
        Margins.n_merges += 1
        super().merge_closest()


@torch.no_grad()
def make(seed):
    """Returns (model, fixture, logits by name) for a seed, and its margin."""
    torch.manual_seed(seed)
    model = OvqModel(config_from_dict(CONFIG), torch.float64).double()
    for parameter in model.parameters():
        parameter.copy_(parameter.float())
    random = np.random.default_rng(seed)
    sequences = [random.integers(101, size=n).tolist() for n in LENGTHS]
    Margins.smallest, Margins.n_merges, logits = np.inf, 0, {}
    for prefix, max_centroids in (("logits", None), ("logits_override", OVERRIDE)):
        for i, tokens in enumerate(sequences):
            logits[f"{prefix}.{i}"] = model(torch.tensor([tokens]), max_centroids)[0].float()
            if Margins.smallest < MARGIN:
                break
    return model, {"sequences": sequences, "max_centroids_override": OVERRIDE}, logits


def main():
    closest_pair.Candidates = Margins
    for seed in range(1000):
        model, fixture, logits = make(seed)
        if Margins.smallest >= MARGIN:
            break
    else:
        raise SystemExit("no seed has the margin")
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config_to_dict(model.config), file, indent=1)
    with open(os.path.join(FOLDER, "tokens.json"), "w", encoding="utf-8") as file:
        json.dump(fixture, file)
    save_safetensors(os.path.join(FOLDER, "model.safetensors"),
                     {name: tensor.float() for name, tensor in model.state_dict().items()})
    save_safetensors(os.path.join(FOLDER, "expected.safetensors"), logits)
    print(f"seed {seed}: {Margins.n_merges} merges, smallest margin {Margins.smallest:.2e}")


if __name__ == "__main__":
    main()
