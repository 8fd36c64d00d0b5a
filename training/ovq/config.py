"""config.json of the native model format: defaults, validation, round trip.

Every error is a ConfigError whose message starts with the name of the field at fault.
"""

import dataclasses
import json
import math
import os
import typing

from ovq.checks import ConfigError, flag, integer, no_other_keys, one_of, positive_number
from ovq.sections import SECTIONS

# Types whose layers have queries, keys and values in heads; ovq/model.py, Attention.
SOFTMAX_LAYER_TYPES = ("sliding_attention", "full_attention", "ovq_attention", "vq_attention",
                       "kvm_attention")
# Short names of the layer types that read the whole context: of models, runs and options.
MIXER_NAMES = {"closest-pair": "closest_pair_attention", "ovq": "ovq_attention",
               "kvm": "kvm_attention", "full": "full_attention", "vq": "vq_attention",
               "gdn": "gated_delta_net", "mamba2": "mamba2", "mesa": "mesa_net",
               "lattice": "lattice", "tvq": "transformer_vq"}
SUPPORTED_LAYER_TYPES = (*SOFTMAX_LAYER_TYPES, *SECTIONS)
KVM_BUDGET_MODES = ("fixed", "power_law", "kvm_saturation")
# Layers without positions, which have equal tensors: the server reads either through any memory.
DICTIONARY_LAYER_TYPES = ("full_attention", "ovq_attention")
_SHARE_ROUNDING = 1e-3
OVQ_UPDATES = ("paper", "closest-pair")
DTYPE_NAMES = ("float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class KvmConfig:
    """The section `kvm`, checked; its names are those of the KVM paper's published code."""

    chunk_len: int = 256
    n_bswa_chunks: int = 2  # chunks of the window, the query's own included
    sink_len: int = 1  # rows that nothing is merged into; at least one row is none
    state_budget_mode: str = "fixed"
    state_growth_factor: float = 1.0
    state_growth_exponent: float = 0.5
    state_round_down: int = 1
    state_min_len: int = -1
    state_saturation_n: typing.Optional[int] = None
    n_max_d_chunks: int = 1  # at most so many chunks' length of rows
    masked_dims: int = 0  # channels of a key that no row sees: those that RoPE turns
    use_merge_gate_keys: bool = True
    use_merge_gate_values: bool = True
    use_head_temps: bool = True
    use_vlens: bool = True
    apply_merge_gate_to_initial_state: bool = False
    apply_merge_gate_to_appends: bool = True
    values_round_to_bfloat16: bool = False  # rows' values, whatever they are computed in
    max_centroids: int = 4096  # cap on the rows of a session that chooses none

    @property
    def has_gates(self):
        return self.use_merge_gate_keys or self.use_merge_gate_values

    def budget(self, position):
        """Rows that the mode asks for where a chunk begins at `position`, before any limit."""
        if self.state_budget_mode == "fixed":
            return self.state_min_len
        if self.state_budget_mode == "power_law":
            n_rows = self.state_growth_factor * position ** self.state_growth_exponent
        else:
            n_rows = self.state_saturation_n * position / (self.state_saturation_n + position)
        n_rows = math.floor(n_rows)
        return max(n_rows - n_rows % self.state_round_down, self.state_min_len)


@dataclasses.dataclass(frozen=True)
class OvqRules:
    """Flags of the section `ovq`: variants of OVQ in the KVM paper's published code."""

    normalize_centroids: bool = False  # rows have norm 1; under delta_rule only their keys
    min_state_size: bool = False  # min(t, N) centroids after t tokens, not eq. 17
    counts_for_rates_only: bool = False  # no ln(count) is added to a centroid's score
    delta_rule: bool = False  # values are merged less what their key reads of the dictionary


@dataclasses.dataclass(frozen=True)
class PairRule:
    """What the section `ovq` says of rows that merge by closest pairs."""

    value_weight: float = 0.5  # w, what values count in a distance
    pinned_tokens: int = 0  # the first tokens never merge; at most a quarter of the rows
    recent_tokens: int = 0  # the newest ones do not yet; at most half of the rows

    def pinned(self, max_rows):
        return min(self.pinned_tokens, max_rows // 4)

    def recent(self, max_rows):
        return min(self.recent_tokens, max_rows // 2)


@dataclasses.dataclass(frozen=True)
class Config:
    """A validated config.json; field names are those of the file, sections are flattened."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int  # 0, as the three below, where no layer has softmax attention
    num_key_value_heads: int
    head_dim: int
    value_head_dim: int
    intermediate_size: typing.Union[int, tuple]  # one for each layer; 0: the layer has no MLP
    layer_types: tuple  # [num_hidden_layers]
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    sliding_window: int = 0  # 0: no layer has a window
    rope_theta: float = 10000.0
    chunk_size: int = 128
    max_centroids: int = 2048
    ovq_rules: OvqRules = OvqRules()
    update: str = "paper"  # of OVQ's dictionaries
    pair_rule: PairRule = PairRule()
    # max_centroids of a layer relative to the model's, an entry for each layer that can be read through
    # a bounded memory: a number, or a tuple of one for each key/value head; None: all have 1
    shares: typing.Optional[tuple] = None
    codebook_size: int = 0  # 0: no layer has a codebook
    kvm: typing.Optional[KvmConfig] = None  # None: no layer has kvm_attention
    sections: dict = dataclasses.field(default_factory=dict)  # of other layer types, by type
    norm_bias: bool = False  # norms of the residual stream have biases
    final_norm: bool = True  # False: the head reads the residual stream itself
    lm_head_bias: bool = False
    logit_scale: float = 1.0  # of the head's product and its bias
    pe_abs: bool = False  # a table of positions is added to the embedding, scaled by a weight
    pe_lam: float = 100000.0
    tokenizer: str = ""
    tokenizer_byte_offset: int = 0
    bos_token_id: int = -1  # -1: none
    eos_token_id: int = -1  # -1: none
    torch_dtype: str = "float32"

    def shares_of(self, i):
        """Layer i's shares of max_centroids, one or one for each head; 1 where it has no dictionary."""
        if self.shares is None or self.layer_types[i] not in DICTIONARY_LAYER_TYPES:
            return (1.0,)
        return as_heads(self.shares[sum(kind in DICTIONARY_LAYER_TYPES
                                        for kind in self.layer_types[:i])])

    @property
    def served_types(self):
        """layer_types by the names that a server has for them."""
        names = {"ovq_attention": "closest_pair_attention"} if self.update == "closest-pair" else {}
        return tuple(names.get(kind, kind) for kind in self.layer_types)

    @property
    def group_size(self):
        """Query heads that read one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def intermediate_sizes(self):
        """The MLP's width in every layer."""
        if isinstance(self.intermediate_size, tuple):
            return self.intermediate_size
        return (self.intermediate_size,) * self.num_hidden_layers


# The file's top-level integer fields that must be present and positive.
_REQUIRED_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")
_FLAGS = ("tie_word_embeddings", "norm_bias", "final_norm", "lm_head_bias", "pe_abs")
_NUMBERS = ("rms_norm_eps", "logit_scale", "pe_lam")
_KNOWN_FIELDS = frozenset((*_REQUIRED_SIZES, *_FLAGS, *_NUMBERS)) | {
    "model_type", "architectures", "num_attention_heads", "num_key_value_heads", "head_dim",
    "value_head_dim", "intermediate_size", "hidden_act", "sliding_window", "rope_theta",
    "layer_types", "ovq", "vq", "kvm", "tokenizer", "tokenizer_byte_offset", "bos_token_id",
    "eos_token_id", "torch_dtype"} | {name for name, _ in SECTIONS.values()}


def _layer_types(raw, n_layers):
    layer_types = raw.get("layer_types")
    if not isinstance(layer_types, list):
        raise ConfigError(f"layer_types: {layer_types!r} is not a list")
    if len(layer_types) != n_layers:
        raise ConfigError(f"layer_types: {len(layer_types)} entries, "
                          f"but num_hidden_layers is {n_layers}")
    for i, layer_type in enumerate(layer_types):
        one_of(f"layer_types[{i}]", layer_type, SUPPORTED_LAYER_TYPES)
    return tuple(layer_types)


def _intermediate_size(raw, n_layers):
    given = raw.get("intermediate_size")
    if not isinstance(given, list):
        return integer("intermediate_size", given, 0)
    if len(given) != n_layers:
        raise ConfigError(f"intermediate_size: {len(given)} entries, but num_hidden_layers is "
                          f"{n_layers}")
    return tuple(integer(f"intermediate_size[{i}]", size, 0) for i, size in enumerate(given))


def _attention_fields(raw, layer_types):
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "value_head_dim")
    if not set(layer_types) & set(SOFTMAX_LAYER_TYPES):
        return {name: integer(name, raw.get(name, 0), 0) for name in names}
    n_heads = integer("num_attention_heads", raw.get("num_attention_heads"), 1)
    head_dim = integer("head_dim", raw.get("head_dim"), 1)
    n_kv_heads = integer("num_key_value_heads", raw.get("num_key_value_heads", n_heads), 1)
    if n_heads % n_kv_heads:
        raise ConfigError(f"num_key_value_heads: {n_kv_heads} does not divide "
                          f"num_attention_heads, {n_heads}")
    if "kvm_attention" in layer_types and n_kv_heads != n_heads:
        raise ConfigError(f"num_key_value_heads: {n_kv_heads}, but kvm_attention needs as many as "
                          f"num_attention_heads, {n_heads}")
    value_head_dim = integer("value_head_dim", raw.get("value_head_dim", head_dim), 1)
    return dict(zip(names, (n_heads, n_kv_heads, head_dim, value_head_dim)))


def _sections(raw, layer_types):
    """The sections of layer types that there are, by type."""
    sections = {}
    for kind in set(layer_types) & set(SECTIONS):
        name, section = SECTIONS[kind]
        if name not in raw:
            raise ConfigError(f"{name}: missing, but there are layers of the type {kind!r}")
        sections[kind] = section.parse(name, raw[name], raw["hidden_size"])
    return sections


def _shares(ovq, n_layers, n_kv_heads):
    """ovq.shares, checked: 1 in the mean over the layers it speaks of."""
    if "shares" not in ovq:
        return None
    shares = ovq["shares"]
    if not isinstance(shares, list) or len(shares) != n_layers:
        raise ConfigError(f"ovq.shares: {shares!r} is not a list of {n_layers} numbers, or lists of "
                          "numbers")
    for share in shares:
        if isinstance(share, list) and len(share) != n_kv_heads:
            raise ConfigError(f"ovq.shares: {share!r} is not a number, or one for each of "
                              f"{n_kv_heads} key/value heads")
    shares = tuple(tuple(positive_number("ovq.shares", of_head) for of_head in share)
                   if isinstance(share, list) else positive_number("ovq.shares", share)
                   for share in shares)
    if abs(sum(map(mean_share, shares)) - n_layers) > _SHARE_ROUNDING * n_layers:
        raise ConfigError(f"ovq.shares: {ovq['shares']} is not 1 in the mean")
    return shares


def as_heads(share):
    """An entry of ovq.shares as a tuple."""
    return share if isinstance(share, tuple) else (share,)


def mean_share(share):
    """Of an entry of ovq.shares."""
    return sum(as_heads(share)) / len(as_heads(share))


def _pair_rule(ovq):
    weight = ovq.get("value_weight", PairRule.value_weight)
    if weight != 0:
        weight = positive_number("ovq.value_weight", weight)
    return PairRule(weight, *(integer(f"ovq.{name}", ovq.get(name, 0), 0)
                              for name in ("pinned_tokens", "recent_tokens")))


def _mixer_fields(raw, layer_types, attention):
    """Fields that only some layer types need, checked where such a layer exists."""
    fields = {}
    if "sliding_attention" in layer_types:
        fields["sliding_window"] = integer("sliding_window", raw.get("sliding_window"), 1)
        if attention["head_dim"] % 2:
            raise ConfigError(f"head_dim: {attention['head_dim']} is odd, but RoPE rotates pairs "
                              "of channels")
    fields["rope_theta"] = positive_number("rope_theta", raw.get("rope_theta", 10000.0))
    flags = [field.name for field in dataclasses.fields(OvqRules)]
    ovq = no_other_keys("ovq", raw.get("ovq", {}),
                        ("chunk_size", "max_centroids", "update", "shares", *flags,
                         *(field.name for field in dataclasses.fields(PairRule))))
    fields["ovq_rules"] = OvqRules(**{name: flag(f"ovq.{name}", ovq.get(name, False))
                                      for name in flags})
    n_heads, n_kv_heads = attention["num_attention_heads"], attention["num_key_value_heads"]
    if fields["ovq_rules"].delta_rule and n_kv_heads != n_heads:
        raise ConfigError(f"ovq.delta_rule: true needs as many num_key_value_heads, {n_kv_heads}, "
                          f"as num_attention_heads, {n_heads}: a key is a query by its head's beta")
    fields["update"] = one_of("ovq.update", ovq.get("update", "paper"), OVQ_UPDATES)
    if fields["update"] != "paper" and any(ovq.get(name) for name in flags):
        raise ConfigError(f"ovq.update: {fields['update']!r} goes with none of {', '.join(flags)}")
    fields["pair_rule"] = _pair_rule(ovq)
    fields["chunk_size"] = integer("ovq.chunk_size", ovq.get("chunk_size", 128), 1)
    fields["max_centroids"] = check_max_centroids(ovq.get("max_centroids", 2048),
                                                  fields["chunk_size"])
    fields["shares"] = _shares(ovq, sum(kind in DICTIONARY_LAYER_TYPES for kind in layer_types),
                               n_kv_heads)
    vq = no_other_keys("vq", raw.get("vq", {}), ("codebook_size",))
    if "vq_attention" in layer_types:
        fields["codebook_size"] = integer("vq.codebook_size", vq.get("codebook_size"), 1)
    kvm = no_other_keys("kvm", raw.get("kvm", {}),
                        [field.name for field in dataclasses.fields(KvmConfig)])
    if "kvm_attention" in layer_types:
        fields["kvm"] = kvm_from_dict(kvm, attention["head_dim"])
    return fields


_KVM_MINIMUMS = {"chunk_len": 1, "n_bswa_chunks": 1, "sink_len": 0, "state_round_down": 1,
                 "state_min_len": -1, "n_max_d_chunks": 1, "masked_dims": 0, "max_centroids": 1}


def kvm_from_dict(section, head_dim):
    """The section `kvm` of a model with heads of head_dim, whose fields are known to exist."""
    fields = {}
    for field in dataclasses.fields(KvmConfig):
        name, value = f"kvm.{field.name}", section.get(field.name, field.default)
        if field.name in _KVM_MINIMUMS:
            value = integer(name, value, _KVM_MINIMUMS[field.name])
        elif isinstance(field.default, float):
            value = positive_number(name, value)
        elif isinstance(field.default, bool):
            value = flag(name, value)
        fields[field.name] = value
    kvm = KvmConfig(**fields)
    one_of("kvm.state_budget_mode", kvm.state_budget_mode, KVM_BUDGET_MODES)
    if kvm.state_budget_mode == "kvm_saturation" or kvm.state_saturation_n is not None:
        integer("kvm.state_saturation_n", kvm.state_saturation_n, 1)
    if kvm.state_growth_exponent > 1:
        raise ConfigError(f"kvm.state_growth_exponent: {kvm.state_growth_exponent} would add rows "
                          "faster than tokens come")
    if kvm.chunk_len % kvm.state_round_down:
        raise ConfigError(f"kvm.state_round_down: {kvm.state_round_down} does not divide "
                          f"kvm.chunk_len, {kvm.chunk_len}")
    if kvm.sink_len >= kvm.chunk_len:
        raise ConfigError(f"kvm.sink_len: {kvm.sink_len} leaves no row of the first chunk of "
                          f"{kvm.chunk_len} to merge into")
    if kvm.masked_dims >= head_dim:
        raise ConfigError(f"kvm.masked_dims: {kvm.masked_dims} leaves nothing of head_dim, "
                          f"{head_dim}")
    if not kvm.use_vlens and (kvm.state_budget_mode != "fixed" or min(
            kvm.state_min_len, kvm.chunk_len * kvm.n_max_d_chunks) > kvm.chunk_len):
        raise ConfigError("kvm.use_vlens: false needs as many rows as chunk_len, "
                          f"{kvm.chunk_len}, all along: state_budget_mode 'fixed' and no larger "
                          "state_min_len")
    return kvm


def share_of(max_centroids, share):
    """A layer's or head's own max_centroids."""
    return max(2, math.floor(share * max_centroids + 0.5))


def check_max_centroids(max_centroids, chunk_len):
    """The first chunk must leave at least one centroid: its keys have nowhere else to go."""
    integer("ovq.max_centroids", max_centroids, 1)
    if chunk_len * max_centroids < chunk_len + max_centroids:
        raise ConfigError(f"ovq.max_centroids: {max_centroids} gives no centroid after the first "
                          f"chunk of {chunk_len}")
    return max_centroids


def _token_fields(raw, vocab_size):
    fields = {}
    for name in ("bos_token_id", "eos_token_id"):
        if raw.get(name) is not None:
            fields[name] = integer(name, raw[name], 0)
            if fields[name] >= vocab_size:
                raise ConfigError(f"{name}: {fields[name]} is outside vocab_size, {vocab_size}")
    if "tokenizer" in raw:
        fields["tokenizer"] = one_of("tokenizer", raw["tokenizer"], ("bytes",))
        offset = integer("tokenizer_byte_offset", raw.get("tokenizer_byte_offset", 0), 0)
        if offset + 256 > vocab_size:
            raise ConfigError(f"tokenizer_byte_offset: {offset} + 256 bytes do not fit "
                              f"vocab_size, {vocab_size}")
        fields["tokenizer_byte_offset"] = offset
    return fields


def config_from_dict(raw):
    """Validates the parsed config.json and fills the defaults in."""
    for key in raw:
        if key not in _KNOWN_FIELDS:
            raise ConfigError(f"{key}: unknown field")
    one_of("model_type", raw.get("model_type"), ("ovq_hybrid",))
    one_of("hidden_act", raw.get("hidden_act", "silu"), ("silu",))
    sizes = {name: integer(name, raw.get(name), 1) for name in _REQUIRED_SIZES}
    layer_types = _layer_types(raw, sizes["num_hidden_layers"])
    attention = _attention_fields(raw, layer_types)
    defaults = {field.name: field.default for field in dataclasses.fields(Config)}
    if flag("pe_abs", raw.get("pe_abs", False)) and sizes["hidden_size"] % 2:
        raise ConfigError("pe_abs: positions are pairs of sine and cosine, but hidden_size is odd, "
                          f"{sizes['hidden_size']}")
    return Config(
        layer_types=layer_types,
        intermediate_size=_intermediate_size(raw, sizes["num_hidden_layers"]),
        sections=_sections(raw, layer_types),
        torch_dtype=one_of("torch_dtype", raw.get("torch_dtype", "float32"), DTYPE_NAMES),
        **sizes,
        **attention,
        **{name: flag(name, raw.get(name, defaults[name])) for name in _FLAGS},
        **{name: positive_number(name, raw.get(name, defaults[name])) for name in _NUMBERS},
        **_mixer_fields(raw, layer_types, attention),
        **_token_fields(raw, sizes["vocab_size"]))


def config_to_dict(config):
    """The config.json of a Config: sections restored, fields without effect left out."""
    raw = {"model_type": "ovq_hybrid", "architectures": ["OvqHybridForCausalLM"],
           "hidden_act": "silu"}
    for name in (*_REQUIRED_SIZES, "num_attention_heads", "head_dim", "intermediate_size",
                 "num_key_value_heads", "value_head_dim", "rms_norm_eps", "tie_word_embeddings",
                 "torch_dtype"):
        raw[name] = getattr(config, name)
    raw["layer_types"] = list(config.layer_types)
    if isinstance(config.intermediate_size, tuple):
        raw["intermediate_size"] = list(config.intermediate_size)
    for field in dataclasses.fields(Config):
        if field.name in (*_FLAGS, *_NUMBERS) and getattr(config, field.name) != field.default:
            raw[field.name] = getattr(config, field.name)
    for kind, section in config.sections.items():
        raw[SECTIONS[kind][0]] = section.to_dict()
    if config.sliding_window:
        raw["sliding_window"] = config.sliding_window
        raw["rope_theta"] = config.rope_theta
    if "ovq_attention" in config.layer_types:
        raw["ovq"] = {"chunk_size": config.chunk_size, "max_centroids": config.max_centroids,
                      **{name: True for name, value in
                         dataclasses.asdict(config.ovq_rules).items() if value}}
        if config.update != "paper":
            raw["ovq"]["update"] = config.update
        for field in dataclasses.fields(PairRule):
            if getattr(config.pair_rule, field.name) != field.default:
                raw["ovq"][field.name] = getattr(config.pair_rule, field.name)
        if config.shares:
            raw["ovq"]["shares"] = [list(share) if isinstance(share, tuple) else share
                                    for share in config.shares]
    if config.codebook_size:
        raw["vq"] = {"codebook_size": config.codebook_size}
    if config.kvm:
        raw["kvm"] = {name: value for name, value in dataclasses.asdict(config.kvm).items()
                      if value is not None}
    if config.tokenizer:
        raw["tokenizer"] = config.tokenizer
        raw["tokenizer_byte_offset"] = config.tokenizer_byte_offset
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(config, name) >= 0:
            raw[name] = getattr(config, name)
    return raw


def read_json_object(path):
    with open(path, encoding="utf-8") as file:
        try:
            raw = json.load(file)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return raw


def load_config(path):
    """Reads config.json from a file, or from a model's folder."""
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    raw = read_json_object(path)
    try:
        return config_from_dict(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
