"""Gated DeltaNet as a module with a state."""

from types import SimpleNamespace

import torch

from ovq import gated_delta_net
from ovq.mixers import wide
from ovq.sections import GatedDeltaNetSection
from ovq_torch.attention import Mixer
from ovq_torch.state import DeltaState


class GatedDeltaNet(Mixer, gated_delta_net.GatedDeltaNet):
    """The gated delta rule ("Gated Delta Networks", Yang et al. 2024), as flash-linear-attention's layer has it:

        S <- alpha S;  S <- S + beta k (v - S^T k)^T;  y = S^T q / sqrt(head_dim)

    with q, k, v from short convolutions and silu, q and k of unit norm, alpha = exp(-exp(A_log) softplus(W_a x +
    dt_bias)), beta = sigmoid(W_b x); then a norm for each head and an output gate. Arguments are the fields of section `gdn`.
    Chunks of 32 tokens go side by side, the state from one to the next (ovq/gated_delta_net.py). The state is S and
    conv_size - 1 tokens of the convolutions' inputs."""

    def __init__(self, hidden_size, num_heads, head_dim, *, value_head_dim=None, conv_size=4, rms_norm_eps=1e-5, **fields):
        raw = {"num_heads": num_heads, "head_dim": head_dim, "value_head_dim": value_head_dim or head_dim,
               "conv_size": conv_size, **fields}
        section = GatedDeltaNetSection.parse("gdn", raw, hidden_size)
        config = SimpleNamespace(hidden_size=hidden_size, rms_norm_eps=rms_norm_eps, num_hidden_layers=1)
        gated_delta_net.GatedDeltaNet.__init__(self, config, section)

    @classmethod
    def of_layer(cls, config, i, recompute_chunks=False):
        """Makes the module of layer i of a Config."""
        del recompute_chunks
        module = cls.__new__(cls)
        gated_delta_net.GatedDeltaNet.__init__(module, config, config.sections[config.layer_types[i]])
        return module

    def run(self, x, state=None, max_centroids=None):
        """forward for sequences of one length. A state has one size, so that max_centroids says nothing."""
        del max_centroids
        n_taps = self.section.conv_size - 1 if self.section.use_short_conv else 0
        taps = state.taps if state else tuple(
            wide(x).new_zeros(len(x), n_taps, len(one.weight)) for one in (self.q_proj, self.k_proj, self.v_proj))
        y, inputs, matrix = gated_delta_net.GatedDeltaNet.run(self, x, taps, state and state.matrix)
        taps = tuple(torch.cat(both, 1)[:, x.shape[1]:].clone() for both in zip(taps, inputs))
        return y, DeltaState(matrix, taps)
