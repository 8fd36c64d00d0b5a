"""Attention with bounded states as PyTorch modules; README.md beside this file shows how to use them."""

from ovq_torch.attention import (ClosestPairAttention, FullAttention, KVMAttention, OVQAttention, SlidingAttention,
                                 VQAttention)
from ovq_torch.causal_lm import Decoder
from ovq_torch.gated_delta_net import GatedDeltaNet

_NEED_TRANSFORMERS = ("OvqConfig", "OvqForCausalLM")  # imported when asked for
__all__ = ("ClosestPairAttention", "Decoder", "FullAttention", "GatedDeltaNet", "KVMAttention", "OVQAttention",
           "SlidingAttention", "VQAttention")


def __getattr__(name):
    if name not in _NEED_TRANSFORMERS:
        raise AttributeError(f"module 'ovq_torch' has no attribute {name!r}")
    try:
        from ovq_torch import for_transformers
    except ImportError as error:
        raise ImportError(f"ovq_torch.{name} needs transformers: {error}") from error
    return getattr(for_transformers, name)
