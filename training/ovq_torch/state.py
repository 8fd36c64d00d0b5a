"""States, which modules keep between two calls: plain dataclasses of tensors and numbers.

`torch.save` writes a state, `torch.load` reads it back, also with weights_only. `state.map(f)` applies f to every tensor:
`state.map(torch.detach)` cuts the gradient, `state.map(lambda x: x[:1])` takes the first sequence of a batch,
`state.map(lambda x: x.to("cuda"))` moves it.
"""

import dataclasses
import typing

import torch


def map_tensors(x, f):
    """Returns x, a state, tensor, number or tuple of such, with f applied to every tensor."""
    if isinstance(x, torch.Tensor):
        return f(x)
    if isinstance(x, tuple):
        return tuple(map_tensors(one, f) for one in x)
    if dataclasses.is_dataclass(x):
        return dataclasses.replace(x, **{field.name: map_tensors(getattr(x, field.name), f)
                                         for field in dataclasses.fields(x)})
    return x


class State:
    """Base class of the states."""

    def map(self, f):
        return map_tensors(self, f)


@dataclasses.dataclass
class Dictionary(State):
    """Slots of one or more key/value heads and the newest chunk, which is not merged into them yet.

    slots [batch, n_kv_heads, n_slots, head_dim + value_head_dim]: mean keys beside mean values, at least float32;
    counts [batch, n_kv_heads, n_slots], int64: the tokens of each; keys and values [batch, n_kv_heads, 0 to chunk_size,
    dim]; max_centroids: N. sizes [batch, n_kv_heads], float64: closest pairs' V / K of each head, NaN as long as it is
    not known."""

    slots: torch.Tensor
    counts: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    max_centroids: int
    sizes: typing.Optional[torch.Tensor] = None


@dataclasses.dataclass
class Tokens(State):
    """Keys and values of tokens as they are: [batch, n_kv_heads, n, dim]. Windows keep the newest, full attention all."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclasses.dataclass
class Codes(State):
    """Values by code: sums [batch, n_kv_heads, codebook_size, value_head_dim], counts [batch, n_kv_heads, codebook_size]
    of the tokens whose keys are nearest to the code."""

    sums: torch.Tensor
    counts: torch.Tensor


@dataclasses.dataclass
class KeyValueMeans(State):
    """KVM's table and the window before it.

    rows: keys [batch, n_heads, n_rows, head_dim], values and lengths as in ovq/kvm.py, or None before the first; keys,
    values, gates (None without gates): tokens that are not in the table, [batch, n_heads, n, ...], whole chunks and the
    newest; max_rows: cap on the rows."""

    rows: typing.Optional[tuple]
    keys: torch.Tensor
    values: torch.Tensor
    gates: typing.Optional[torch.Tensor]
    max_rows: int


@dataclasses.dataclass
class AttentionState(State):
    """State of an attention module after n_tokens tokens.

    memories: one for all heads, or one for each key/value head where they have unequal shares. last [batch, 1,
    hidden_size]: the newest input, for the token shift, else None."""

    n_tokens: int
    memories: tuple
    last: typing.Optional[torch.Tensor] = None


@dataclasses.dataclass
class DeltaState(State):
    """State of a Gated DeltaNet: S [batch, n_heads, head_dim, value_head_dim], and what the convolutions of q, k and v
    still read, each [batch, conv_size - 1, channels] (empty without convolutions)."""

    matrix: torch.Tensor
    taps: tuple


@dataclasses.dataclass
class ModelState(State):
    """States of all layers after n_tokens tokens."""

    n_tokens: int
    layers: tuple


if hasattr(torch.serialization, "add_safe_globals"):  # torch 2.4 and later
    torch.serialization.add_safe_globals(
        [Dictionary, Tokens, Codes, KeyValueMeans, AttentionState, DeltaState, ModelState])
