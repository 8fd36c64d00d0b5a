"""Writes a training checkpoint as a native model folder: config.json and model.safetensors.

If the recipe names a task, a task.json tells score.py which task the model was trained on."""

import argparse
import dataclasses
import math
import os
import sys

from checkpoints import read_checkpoint
from ovq.config import ConfigError, config_from_dict
from ovq.model import INDEX, WEIGHTS, load_model, save_model, write_json

_LAST_NORM = "model.norm.weight"


def averaged(weights, folder):
    """Returns the mean of some weights and of those of a model folder."""
    others = load_model(folder).state_dict()
    if {name: weight.shape for name, weight in weights.items()} != {name: other.shape for name, other in others.items()}:
        raise ValueError(f"--mean-with: {folder} has no weights of this model's names and shapes")
    return {name: (weight + others[name]) / 2 for name, weight in weights.items()}


def sharpened(config, weights, factor):
    """Returns the Config and weights of the same model with all logits multiplied by a factor.

    The norm before the head takes it; where there is none, or where a bias adds to the logits, logit_scale does."""
    if config.final_norm and not config.norm_bias and not config.lm_head_bias:
        return config, {**weights, _LAST_NORM: weights[_LAST_NORM] * factor}
    return dataclasses.replace(config, logit_scale=config.logit_scale * factor), weights


def export(checkpoint, out, dtype, overwrite, shard_bytes=None, sharpen=1.0, mean_with=None):
    """Writes every weight as dtype, in files of at most shard_bytes; returns the bytes of all weights.

    mean_with: folder of a model with whose weights the mean is taken, such as those that training went on from.
    sharpen: factor of all logits: sampling at temperature 1 is then what it was at 1 / sharpen."""
    config_path = os.path.join(out, "config.json")
    task_path = os.path.join(out, "task.json")
    for path in (config_path, os.path.join(out, WEIGHTS), os.path.join(out, INDEX)):
        if os.path.exists(path) and not overwrite:
            raise ValueError(f"{path} exists: pass --overwrite to replace it")
    saved = read_checkpoint(checkpoint, ("config", "model"))
    if mean_with is not None:
        saved["model"] = averaged(saved["model"], mean_with)
    config, weights = sharpened(config_from_dict(saved["config"]), saved["model"], sharpen)
    n_bytes = save_model(out, config, weights, dtype, shard_bytes)
    if saved.get("task"):
        write_json(task_path, {"task": saved["task"]})
    elif os.path.exists(task_path):
        os.remove(task_path)  # left by the model that this one replaces
    return n_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--checkpoint", required=True, help="checkpoint.pt of a run")
    parser.add_argument("--out", required=True, help="folder of the native model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--shard-mb", type=float, help="several files of at most so many megabytes; default: one")
    parser.add_argument("--mean-with", help="model folder: write the mean of its weights and the checkpoint's")
    parser.add_argument("--sharpen", type=float, default=1.0, help="multiply the logits by this, for clients that set no "
                        "temperature: 2 makes temperature 1 what 0.5 was; greedy answers stay")
    parser.add_argument("--overwrite", action="store_true", help="replace a model in --out")
    args = parser.parse_args()
    for option, value in (("--shard-mb", args.shard_mb), ("--sharpen", args.sharpen)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option}: {value} is not {'finite' if value == math.inf else 'positive'}")
    n_bytes = export(args.checkpoint, args.out, args.dtype, args.overwrite, args.shard_mb and int(args.shard_mb * 1e6),
                     args.sharpen, args.mean_with)
    print(f"{args.out}: {n_bytes} bytes of weights in {args.dtype}")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        sys.exit(f"export.py: {error}")
