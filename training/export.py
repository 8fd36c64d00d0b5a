"""Writes a training checkpoint as a native model folder: config.json and model.safetensors.

If the recipe names a task, a task.json tells score.py which task the model was trained on."""

import argparse
import dataclasses
import json
import os
import sys

import torch

from ovq.config import ConfigError, config_from_dict, config_to_dict
from ovq.model import DTYPES
from ovq.safetensors_io import save_safetensors


def _write_json(path, value):
    with open(path + ".partial", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
    os.replace(path + ".partial", path)


def export(checkpoint, out, dtype, overwrite):
    """Writes every weight as dtype; returns the size of model.safetensors in bytes."""
    config_path = os.path.join(out, "config.json")
    weights_path = os.path.join(out, "model.safetensors")
    task_path = os.path.join(out, "task.json")
    for path in (config_path, weights_path):
        if os.path.exists(path) and not overwrite:
            raise ValueError(f"{path} exists: pass --overwrite to replace it")
    saved = torch.load(checkpoint, map_location="cpu")
    for part in ("config", "model"):
        if part not in saved:
            raise ValueError(f"{checkpoint}: holds no {part!r}, so it is no checkpoint of train.py")
    config = dataclasses.replace(config_from_dict(saved["config"]), torch_dtype=dtype)
    os.makedirs(out, exist_ok=True)
    save_safetensors(weights_path,
                     {name: tensor.to(DTYPES[dtype]) for name, tensor in saved["model"].items()})
    if saved.get("task"):
        _write_json(task_path, {"task": saved["task"]})
    elif os.path.exists(task_path):
        os.remove(task_path)  # left by the model that this one replaces
    _write_json(config_path, config_to_dict(config))
    return os.path.getsize(weights_path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--checkpoint", required=True, help="checkpoint.pt of a run")
    parser.add_argument("--out", required=True, help="folder of the native model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--overwrite", action="store_true", help="replace a model in --out")
    args = parser.parse_args()
    n_bytes = export(args.checkpoint, args.out, args.dtype, args.overwrite)
    print(f"{args.out}: {n_bytes} bytes of weights in {args.dtype}")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        sys.exit(f"export.py: {error}")
