"""Checkpoints that train.py writes."""

import torch

CHECKPOINT = "checkpoint.pt"


def read_checkpoint(path, parts):
    """Returns a checkpoint, a dict, with its tensors on the CPU; ValueError, which names the file: it is none or lacks one
    of the parts."""
    with open(path, "rb"):  # torch's own errors may not name the file
        pass
    try:
        saved = torch.load(path, map_location="cpu")
    except Exception as error:  # whatever the bytes of another file lead to
        raise ValueError(f"{path}: no checkpoint of train.py: {error}") from error
    if not isinstance(saved, dict):
        raise ValueError(f"{path}: no checkpoint of train.py")
    for part in parts:
        if part not in saved:
            raise ValueError(f"{path}: holds no {part!r}, so it is no checkpoint of train.py")
    return saved
