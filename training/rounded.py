"""Writes a model folder with matrices rounded to int4 in groups, to measure the loss of accuracy.

Each row of a matrix is cut into groups of --group weights, and each group rounded to integers times
a scale of its own: symmetric from -7 to 7, the largest weight being 7 scales, or with --asymmetric
0 to 15 above the group's smallest weight. The folder holds the rounded values in the original
dtype, so every server loads it: score.py can measure the cost of int4 before there is a kernel for
it. The embedding, a separate head, and matrices of fewer than 64 rows stay unchanged, which favours
int4."""

import argparse
import os
import shutil
import sys

import torch

from ovq.safetensors_io import SafetensorsError, load_safetensors, save_safetensors

_LEAST_ROWS = 64
_KEPT = ("README.md", "model.safetensors")  # files of the folder that are not copied


def rounded(weights, group, asymmetric=False):
    """Rounds a matrix to int4 in groups of its rows' weights; the last group of a row may be
    shorter."""
    parts = []
    for part in weights.float().split(group, dim=1):
        if asymmetric:
            least = part.amin(dim=1, keepdim=True)
            scale = (part.amax(dim=1, keepdim=True) - least) / 15
        else:
            least = torch.zeros(part.shape[0], 1)
            scale = part.abs().amax(dim=1, keepdim=True) / 7
        whole = ((part - least) / scale.where(scale > 0, torch.ones(()))).round()
        parts.append(whole * scale + least)
    return torch.cat(parts, dim=1).to(weights.dtype)


def is_rounded(name, tensor):
    return name.startswith("model.layers.") and tensor.dim() == 2 and tensor.shape[0] >= _LEAST_ROWS


def write_rounded(model, out, group, asymmetric=False):
    """Returns the number of the model's weights that are rounded, and the total number."""
    tensors = load_safetensors(os.path.join(model, "model.safetensors"))
    chosen = [name for name, tensor in tensors.items() if is_rounded(name, tensor)]
    total = sum(tensor.numel() for tensor in tensors.values())
    for name in chosen:
        tensors[name] = rounded(tensors[name], group, asymmetric)
    os.makedirs(out, exist_ok=True)
    for file in os.listdir(model):
        if file not in _KEPT:
            shutil.copy(os.path.join(model, file), out)
    save_safetensors(os.path.join(out, "model.safetensors"), tensors)
    return sum(tensors[name].numel() for name in chosen), total


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--out", required=True, help="the folder to write, not --model")
    parser.add_argument("--group", type=int, default=32, help="weights of a scale")
    parser.add_argument("--asymmetric", action="store_true")
    args = parser.parse_args()
    if args.group < 1:
        raise ValueError(f"--group: {args.group} is not positive")
    if os.path.realpath(args.model) == os.path.realpath(args.out):
        raise ValueError("--out: is --model")
    chosen, total = write_rounded(args.model, args.out, args.group, args.asymmetric)
    print(f"{args.out}: {chosen} of {total} weights rounded")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, SafetensorsError) as error:
        sys.exit(f"rounded.py: {error}")
