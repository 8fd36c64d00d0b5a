"""Sequences of unequal lengths: one after another (packed), or with a mask."""

import torch


def each_sequence(forward, x, cu_seqlens):
    """Runs forward on every sequence alone.

    x [1, n_tokens, ...]: the sequences, one after another; cu_seqlens [n_sequences + 1], int: where each begins, then
    n_tokens. forward: [batch, n, ...] -> [batch, n, channels], causal. Sequences of about one length go together, with at
    most as much filling behind them. Returns [1, n_tokens, channels]."""
    bounds = torch.as_tensor(cu_seqlens).tolist()
    if x.shape[0] != 1:
        raise ValueError(f"cu_seqlens: packed sequences are a batch of 1, not of {x.shape[0]}")
    if bounds[:1] != [0] or bounds[-1] != x.shape[1] or sorted(bounds) != bounds:
        raise ValueError(f"cu_seqlens: {bounds} do not ascend from 0 to the number of tokens, {x.shape[1]}")
    if not x.shape[1]:
        raise ValueError("cu_seqlens, mask: no sequence has a token")
    alike = {}
    for begin, end in zip(bounds, bounds[1:]):
        if end > begin:
            alike.setdefault((end - begin).bit_length(), []).append((begin, end))
    outs, places = [], []
    for sequences in alike.values():
        begins, ends = torch.tensor(sequences, device=x.device).T.unsqueeze(-1)
        index = begins + torch.arange(int((ends - begins).max()), device=x.device)
        real = index < ends
        outs.append(forward(x[0, index.clamp(max=x.shape[1] - 1)])[real])
        places.append(index[real])
    return torch.cat(outs)[torch.cat(places).argsort()].unsqueeze(0)


def each_masked(forward, x, mask):
    """Like each_sequence for x [batch, n_tokens, ...] and mask [batch, n_tokens], true for real tokens: the others are as
    if they were not there, and their outputs are 0."""
    mask = mask.bool()
    if mask.shape != x.shape[:2]:
        raise ValueError(f"mask: shape {list(mask.shape)}, but the input has {list(x.shape[:2])} tokens")
    packed = each_sequence(forward, x[mask].unsqueeze(0), [0] + mask.sum(1).cumsum(0).tolist())[0]
    return packed.new_zeros(*mask.shape, packed.shape[-1]).index_put((mask,), packed)
