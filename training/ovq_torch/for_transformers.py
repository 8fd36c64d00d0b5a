"""The decoder as a model of transformers, with its generate(); this module needs transformers."""

import dataclasses

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from ovq.config import NATIVE_FIELDS, config_from_dict
from ovq_torch.causal_lm import Decoder
from ovq_torch.sequences import each_masked

_OWN_FIELDS = NATIVE_FIELDS - {"architectures", "model_type", "torch_dtype"}  # the others are transformers' own


class OvqConfig(PretrainedConfig):
    """config.json of the native format (docs/model-format.md), as keyword arguments or as one, native."""

    model_type = "ovq_hybrid"

    def __init__(self, native=None, **fields):
        given = {name: fields.pop(name) for name in list(fields) if name in _OWN_FIELDS}
        self.native = dict(given if native is None else native)
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            setattr(self, name, self.native.get(name))
        # the decoder ties its head by itself: it has no second tensor
        super().__init__(**fields, tie_word_embeddings=False, bos_token_id=self.native.get("bos_token_id"),
                         eos_token_id=self.native.get("eos_token_id"))

    def checked(self):
        """Returns the Config of ovq/config.py; a ConfigError names the field at fault."""
        return config_from_dict({"model_type": self.model_type, **self.native})


@dataclasses.dataclass
class OvqOutput(ModelOutput):
    """loss: the mean cross entropy of labels, None without; logits [batch, n_tokens, vocab_size]; state: a ModelState to go
    on from, None for sequences of unequal lengths."""

    loss: object = None
    logits: object = None
    state: object = None


def chosen(state, read_ids, wanted_ids):
    """Returns the state of sequences that a beam search has chosen among those of a state, each by its tokens: what a
    state has depends on nothing else. transformers itself reorders no other cache than past_key_values."""
    if torch.equal(read_ids, wanted_ids):
        return state
    alike = (wanted_ids.unsqueeze(1) == read_ids).all(-1)  # [sequences wanted, sequences read]
    if not alike.any(1).all():
        raise ValueError("input_ids: a sequence does not begin with the tokens of any that the state has read")
    index = alike.int().argmax(1)
    return state.map(lambda part: part[index.to(part.device)])


class OvqForCausalLM(PreTrainedModel, GenerationMixin):
    """Decoder for transformers: from_pretrained reads native model folders, too. Its cache is `state`, a ModelState."""

    config_class = OvqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True
    _supports_cache_class = False

    def __init__(self, config):
        super().__init__(config)
        decoder = Decoder(config.checked())
        self.model, self.lm_head = decoder.model, decoder.lm_head
        object.__setattr__(self, "decoder", decoder)  # no submodule, as its parts are
        self.post_init()

    def _init_weights(self, module):
        """Does nothing: modules draw their own weights."""

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def set_input_embeddings(self, value):
        self.model.embed_tokens = value

    def forward(self, input_ids, attention_mask=None, state=None, labels=None, **_):
        """input_ids [batch, n_tokens]; attention_mask [batch, >= n_tokens]: 0 for filling, on either side; state: what came
        before; labels [batch, n_tokens]: input_ids, -100 where there is no loss. Returns an OvqOutput."""
        self.decoder.compute_dtype = self.model.embed_tokens.weight.dtype
        if state is None and attention_mask is not None and not attention_mask.all():
            logits = each_masked(lambda part: self.decoder.read(part)[0], input_ids, attention_mask)
        else:
            logits, state = self.decoder.read(input_ids, state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return OvqOutput(loss=loss, logits=logits, state=state)

    def prepare_inputs_for_generation(self, input_ids, state=None, attention_mask=None, read_ids=None, **_):
        """read_ids: the tokens that the state has read, in its order of sequences; None: those of input_ids."""
        self._reading = input_ids
        if state is None:
            return {"input_ids": input_ids, "attention_mask": attention_mask}
        if read_ids is not None:
            state = chosen(state, read_ids, input_ids[:, :state.n_tokens])
        return {"input_ids": input_ids[:, state.n_tokens:], "state": state}

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, *more, **options):
        model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *more, **options)
        return {**model_kwargs, "state": outputs.state, "read_ids": self._reading}

    def save_native(self, folder, dtype="float32", shard_bytes=None):
        """Writes the folder of Decoder.save_native."""
        self.decoder.save_native(folder, dtype, shard_bytes)


AutoConfig.register(OvqConfig.model_type, OvqConfig, exist_ok=True)
AutoModelForCausalLM.register(OvqConfig, OvqForCausalLM, exist_ok=True)
