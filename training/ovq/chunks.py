"""What the chunk forms of recurrent mixers share.

A state S decays by a factor exp(a_t) at every token t and then takes in that token's outer product.
Chunks have a fixed length; sequences are filled up with tokens that neither decay nor add.
Shapes: [batch, n_heads, n_chunks, chunk_len, ...].
"""

import torch
import torch.nn.functional as F


def in_chunks(x, chunk_len, dim=2):
    """[batch, n_heads, n_tokens, ...] -> [batch, n_heads, n_chunks, chunk_len, ...], zeros added."""
    n_added = -x.shape[dim] % chunk_len
    if n_added:
        x = F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, n_added))
    return x.unflatten(dim, (-1, chunk_len))


def out_of_chunks(x, n_tokens):
    """The inverse of in_chunks for a sequence of n_tokens."""
    return x.flatten(2, 3)[:, :, :n_tokens]


def decays_between(sums):
    """exp(sums_i - sums_j) for j <= i, else 0: [..., n, n] of running sums [..., n].

    The difference comes before the exponential: each alone can be too small for float32.
    """
    later = torch.ones(2 * sums.shape[-1:], dtype=torch.bool, device=sums.device).triu(1)
    return (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()


def states_before(added, decays):
    """The state before each chunk, zero before the first.

    added [batch, n_heads, n_chunks, rows, columns]: what a chunk adds, as of its end; decays [batch,
    n_heads, n_chunks]: the logarithm of the whole chunk's decay.
    """
    sums = F.pad(decays, (1, 0)).cumsum(-1)  # before chunk c: sums_c
    weights = decays_between(sums)[..., :-1, 1:]  # what the end of chunk j is before chunk c
    return torch.matmul(weights, added.flatten(-2)).unflatten(-1, added.shape[-2:])
