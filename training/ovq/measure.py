"""Bits per byte of a model on a token stream."""

import math

import numpy as np
import torch
import torch.nn.functional as F


@torch.no_grad()
def token_bits(model, inputs, targets, max_centroids=None):
    """Returns -log2 of each target's probability, float32 [batch, n_tokens]."""
    device = next(model.parameters()).device
    logits = model(torch.from_numpy(inputs).to(device), max_centroids)
    targets = torch.from_numpy(targets).to(device)
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (nats / math.log(2)).view(targets.shape).cpu().numpy()


def bits_per_byte(bits, targets):
    """Returns all bits, document marks' included, divided by the number of bytes."""
    return float(np.sum(bits, dtype=np.float64)) / int(np.count_nonzero(targets < 256))
