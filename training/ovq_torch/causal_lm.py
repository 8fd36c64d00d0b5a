"""The decoder of the native format with a state."""

import torch

from ovq.config import ConfigError, check_max_centroids
from ovq.model import Layer, OvqModel, load_model, save_model
from ovq_torch.attention import (ClosestPairAttention, FullAttention, KVMAttention, OVQAttention, SlidingAttention,
                                 VQAttention, check_rules)
from ovq_torch.gated_delta_net import GatedDeltaNet
from ovq_torch.sequences import each_masked, each_sequence
from ovq_torch.state import ModelState

MIXERS = {"sliding_attention": SlidingAttention, "full_attention": FullAttention, "ovq_attention": OVQAttention,
          "closest_pair_attention": ClosestPairAttention, "kvm_attention": KVMAttention, "vq_attention": VQAttention,
          "gated_delta_net": GatedDeltaNet}


def check_layers(config):
    """Raises an error that names the field if a layer of a Config (ovq/config.py) has no module with a state."""
    for i, kind in enumerate(config.served_types):
        if kind not in MIXERS:
            raise ConfigError(f"layer_types[{i}]: {kind!r} has no module with a state: {', '.join(MIXERS)} have")
        if kind == "ovq_attention":
            check_rules(config.ovq_rules)


class DecoderLayer(Layer):
    """ovq/model.py's layer, which passes a state on."""

    @staticmethod
    def make_mixer(config, i, *training_options):
        return MIXERS[config.served_types[i]].of_layer(config, i, training_options[1])

    def forward(self, x, state, max_centroids, compute_dtype):
        y, state = self.self_attn(self.input_layernorm(x, compute_dtype), state, max_centroids=max_centroids)
        return self.add_mlp(x + y, compute_dtype), state


class Decoder(OvqModel):
    """OvqModel with a state; the same parameters, and outputs that are equal but for rounding.

    config: a Config (ovq/config.py). compute_dtype: of matrix products; norms, softmaxes and dictionaries are float32, or
    float64 in a model of float64. recompute_chunks: less memory in training, more time."""

    layer_class = DecoderLayer

    def __init__(self, config, compute_dtype=torch.float32, recompute_chunks=False):
        check_layers(config)
        super().__init__(config, compute_dtype, "none", recompute_chunks)

    def read(self, tokens, state=None, max_centroids=None, places=None):
        """Returns (logits [batch, n_tokens, vocab_size], state) of tokens [batch, n_tokens] and what came before.

        max_centroids: N of a new state's dictionaries, None: the config's. places: as in OvqModel.forward."""
        if max_centroids is not None:
            check_max_centroids(max_centroids, self.config.chunk_size)
        n_before, states = (state.n_tokens, state.layers) if state else (0, [None] * len(self.model.layers))
        x, after = self._embed(tokens, n_before), []
        for layer, before in zip(self.model.layers, states):
            x, one = layer(x, before, max_centroids, self.compute_dtype)
            after.append(one)
        return self._logits(self._normed(x), places), ModelState(n_before + tokens.shape[1], tuple(after))

    def forward(self, tokens, max_centroids=None, places=None, *, cu_seqlens=None, mask=None):
        """Returns logits [batch, n_tokens, vocab_size] of whole sequences; cu_seqlens and mask: as in Mixer.forward.

        places: as in OvqModel.forward, of sequences without cu_seqlens and mask."""
        if places is not None:
            if cu_seqlens is not None or mask is not None:
                raise ValueError("places: expected neither cu_seqlens nor mask beside them")
            return self.read(tokens, None, max_centroids, places)[0]

        def logits(part):
            return self.read(part, None, max_centroids)[0]
        if mask is not None:
            return each_masked(logits, tokens, mask)
        return logits(tokens) if cu_seqlens is None else each_sequence(logits, tokens, cu_seqlens)

    def step(self, tokens, state=None, max_centroids=None):
        """One token of each sequence: tokens [batch] -> (logits [batch, vocab_size], state)."""
        logits, state = self.read(tokens.unsqueeze(1), state, max_centroids)
        return logits.squeeze(1), state

    def read_through(self, memory):
        raise ValueError(f"memory: {memory!r}: baselines are read through ovq/model.py's OvqModel alone")

    def save_native(self, folder, dtype="float32", shard_bytes=None):
        """Writes a folder that ovq-server, ovq/ and from_native load; shard_bytes: the most in one file, None: one file."""
        save_model(folder, self.config, self.state_dict(), dtype, shard_bytes)

    @classmethod
    def from_native(cls, folder, compute_dtype=torch.float32):
        """Reads a model folder (docs/model-format.md) of layers that have a module here."""
        source = load_model(folder)
        model = cls(source.config, compute_dtype)
        model.load_state_dict(source.state_dict())
        return model.eval()
