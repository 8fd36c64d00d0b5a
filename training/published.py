"""Converts a native model to the formats of published projects: config.json and model.safetensors
with their fields and names.

With --fixtures, writes the folders of tests/golden/fla instead: a small random model in every
format, with token ids and the reference's logits for them in float64.
"""

import argparse
import json
import math
import os
import sys

import numpy as np
import torch

from ovq.config import ConfigError, config_from_dict
from ovq.model import OvqModel, load_model
from ovq.safetensors_io import save_safetensors

_FLA_NAMES = {"model.embed_tokens.": "model.embeddings.", ".input_layernorm.": ".attn_norm.",
              ".self_attn.": ".attn.", ".post_attention_layernorm.": ".mlp_norm."}
_MAMBA_NAMES = {"model.embed_tokens.": "backbone.embeddings.", "model.layers.": "backbone.layers.",
                "model.norm.": "backbone.norm_f.", ".input_layernorm.": ".norm.",
                ".self_attn.": ".mixer."}
_STATE_SPACES_NAMES = {**_MAMBA_NAMES, "model.embed_tokens.": "backbone.embedding."}
_STATE_SPACES_EPS = 1e-5  # no field has it
# Fields that the projects' trainers write and that do not affect results.
_FLA_TRAINING = {"fuse_norm": True, "fuse_cross_entropy": True, "fuse_linear_cross_entropy": False,
                 "use_l2warp": False, "initializer_range": 0.02, "use_cache": True,
                 "transformers_version": "4.51.3"}


def _section(config, kind):
    if set(config.layer_types) != {kind}:
        raise ValueError(f"layer_types: this format has {kind} layers only")
    plain = {"final_norm": True, "norm_bias": False, "lm_head_bias": False, "logit_scale": 1,
             "pe_abs": False}
    for name, value in plain.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name}: this format has no such field")
    return config.sections[kind]


def _one_width(config):
    widths = set(config.intermediate_sizes)
    if len(widths) != 1 or widths == {0}:
        raise ValueError(f"intermediate_size: {config.intermediate_size}, but this format has one "
                         "width for all layers")
    return widths.pop()


def fla_width(d_model, hidden_ratio):
    """Returns the MLP's width that flash-linear-attention uses if a config has none."""
    return 256 * math.ceil(int(d_model * hidden_ratio * 2 / 3) / 256)


def _marks(config):
    """Returns the tokens that begin and end a text; for a model without such, the projects' own defaults."""
    return {name: default if getattr(config, name) < 0 else getattr(config, name)
            for name, default in (("bos_token_id", 1), ("eos_token_id", 2))}


def _fla_sizes(config):
    width = _one_width(config)
    from_ratio = width == fla_width(config.hidden_size, 4)
    return {"attn": None, "attn_mode": "chunk", "hidden_act": "swish", "hidden_ratio": 4,
            "hidden_size": config.hidden_size, "max_position_embeddings": 2048,
            "intermediate_size": None if from_ratio else width, "norm_eps": config.rms_norm_eps,
            "num_hidden_layers": config.num_hidden_layers, "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.tie_word_embeddings, "torch_dtype": config.torch_dtype,
            **_marks(config), "fuse_swiglu": True, **_FLA_TRAINING}


def value_expansion(head_dim, value_head_dim):
    """Returns expand_v, of which flash-linear-attention makes a head's values by int(head_dim * expand_v)."""
    expand = value_head_dim / head_dim
    while int(head_dim * expand) < value_head_dim:  # the quotient may be rounded down
        expand = math.nextafter(expand, math.inf)
    return expand


def fla_gated_deltanet(config):
    """flash-linear-attention's GatedDeltaNetForCausalLM."""
    gdn = _section(config, "gated_delta_net")
    if gdn.conv_bias:
        raise ValueError("gdn.conv_bias: no field of the published config has it")
    return {"architectures": ["GatedDeltaNetForCausalLM"], "model_type": "gated_deltanet",
            **_fla_sizes(config), "num_heads": gdn.num_heads, "num_v_heads": gdn.num_v_heads,
            "head_dim": gdn.head_dim, "expand_v": value_expansion(gdn.head_dim, gdn.value_head_dim),
            "conv_size": gdn.conv_size, "use_gate": gdn.use_gate,
            "use_short_conv": gdn.use_short_conv, "allow_neg_eigval": gdn.allow_neg_eigval}


def fla_mesa_net(config):
    """flash-linear-attention's MesaNetForCausalLM."""
    mesa = _section(config, "mesa_net")
    if mesa.conv_bias:
        raise ValueError("mesa_net.conv_bias: no field of the published config has it")
    return {"architectures": ["MesaNetForCausalLM"], "model_type": "mesa_net",
            **_fla_sizes(config), "num_heads": mesa.num_heads, "head_dim": mesa.head_dim,
            "conv_size": mesa.conv_size, "use_output_gate": mesa.use_output_gate,
            "use_short_conv": True, "lambda_lower_bound": mesa.lambda_lower_bound,
            "max_cg_step_training": mesa.max_cg_step_training, "max_cg_step_decoding": 30}


def _mamba2_sizes(config):
    mamba = _section(config, "mamba2")
    if set(config.intermediate_sizes) != {0}:
        raise ValueError(f"intermediate_size: {config.intermediate_size}, but this format has no "
                         "MLP")
    expand = mamba.inner_size / config.hidden_size
    if expand != int(expand):
        raise ValueError(f"mamba2.num_heads: num_heads * head_dim, {mamba.inner_size}, is no "
                         f"multiple of hidden_size, {config.hidden_size}")
    return mamba, int(expand)


def _dt_limit(mamba):
    """Uses infinity, which json writes as a bare word, like the projects' own files."""
    low, high = mamba.dt_limit or [0.0, None]
    return [low, math.inf if high is None else high]


def _mamba2_common(config, mamba, expand):
    return {"model_type": "mamba2", "hidden_act": "silu", "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers, "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.tie_word_embeddings, "torch_dtype": config.torch_dtype,
            "num_heads": mamba.num_heads, "head_dim": mamba.head_dim, "expand": expand,
            "state_size": mamba.state_size, "n_groups": mamba.n_groups,
            "conv_kernel": mamba.conv_kernel, "use_conv_bias": mamba.use_conv_bias,
            "use_bias": mamba.use_bias, "norm_before_gate": mamba.norm_before_gate,
            "chunk_size": 256, "residual_in_fp32": True, "rescale_prenorm_residual": True,
            "pad_token_id": 0, **_marks(config)}


def fla_mamba2(config):
    """flash-linear-attention's Mamba2ForCausalLM."""
    mamba, expand = _mamba2_sizes(config)
    return {"architectures": ["Mamba2ForCausalLM"], **_mamba2_common(config, mamba, expand),
            "norm_eps": config.rms_norm_eps, "rmsnorm": mamba.rmsnorm,
            "D_has_hdim": mamba.D_has_hdim, "dt_limit": _dt_limit(mamba), "dt_min": 0.001,
            "dt_max": 0.1, "dt_init_floor": 0.0001, "A_init_range": [1, 16], "conv_init": None,
            **_FLA_TRAINING}


def hf_mamba2(config):
    """transformers' Mamba2ForCausalLM, which supports neither groups in its norm nor a wide D."""
    mamba, expand = _mamba2_sizes(config)
    if mamba.n_groups != 1 or mamba.D_has_hdim:
        raise ValueError("mamba2: transformers computes no n_groups but 1 as others do, and has no "
                         "D_has_hdim")
    return {"architectures": ["Mamba2ForCausalLM"], **_mamba2_common(config, mamba, expand),
            "layer_norm_epsilon": config.rms_norm_eps, "rms_norm": mamba.rmsnorm,
            "time_step_limit": _dt_limit(mamba), "time_step_min": 0.001, "time_step_max": 0.1,
            "time_step_floor": 0.0001, "time_step_rank": math.ceil(config.hidden_size / 16),
            "initializer_range": 0.1, "use_cache": True, "transformers_version": "4.44.0"}


def state_spaces_mamba2(config):
    """state-spaces/mamba's MambaLMHeadModel with layers "Mamba2". Its code rounds vocab_size up to a multiple of
    pad_vocab_size_multiple: of 16, as published models do, where the model's size allows it."""
    mamba, expand = _mamba2_sizes(config)
    if not config.tie_word_embeddings:
        raise ValueError("tie_word_embeddings: published models of this format have it")
    if config.rms_norm_eps != _STATE_SPACES_EPS:
        raise ValueError(f"rms_norm_eps: {config.rms_norm_eps}, but this format has {_STATE_SPACES_EPS} always")
    defaults = {"d_state": (mamba.state_size, 128), "d_conv": (mamba.conv_kernel, 4),
                "expand": (expand, 2), "headdim": (mamba.head_dim, 64),
                "ngroups": (mamba.n_groups, 1), "bias": (mamba.use_bias, False),
                "conv_bias": (mamba.use_conv_bias, True), "rmsnorm": (mamba.rmsnorm, True),
                "norm_before_gate": (mamba.norm_before_gate, False),
                "D_has_hdim": (mamba.D_has_hdim, False)}
    ssm = {"layer": "Mamba2", **{name: value for name, (value, default) in defaults.items()
                                 if value != default}}
    if mamba.dt_limit is not None:
        ssm["dt_limit"] = _dt_limit(mamba)
    return {"d_model": config.hidden_size, "d_intermediate": 0, "n_layer": config.num_hidden_layers,
            "vocab_size": config.vocab_size, "ssm_cfg": ssm, "attn_layer_idx": [], "attn_cfg": {},
            "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True,
            "pad_vocab_size_multiple": 1 if config.vocab_size % 16 else 16, "tie_embeddings": True}


# format -> (function from a Config to its config.json, its names for the native prefixes)
FORMATS = {"fla-gated_deltanet": (fla_gated_deltanet, _FLA_NAMES),
           "fla-mesa_net": (fla_mesa_net, _FLA_NAMES), "fla-mamba2": (fla_mamba2, _MAMBA_NAMES),
           "hf-mamba2": (hf_mamba2, _MAMBA_NAMES),
           "state-spaces-mamba2": (state_spaces_mamba2, _STATE_SPACES_NAMES)}


def renamed(name, names):
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name


def write_published(model, name, out, fields=None, tensors=None):
    """Writes a model in a format, with additional fields and tensors, if given.

    Tied heads have a tensor in state-spaces' own files only."""
    make_config, names = FORMATS[name]
    raw = {**make_config(model.config), **(fields or {})}
    tensors = {renamed(ours, names): tensor
               for ours, tensor in (*model.state_dict().items(), *(tensors or {}).items())}
    if name == "state-spaces-mamba2":
        tensors["lm_head.weight"] = tensors["backbone.embedding.weight"]
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(raw, file, indent=2)
        file.write("\n")
    save_safetensors(os.path.join(out, "model.safetensors"), tensors)


def _fixture(layer_type, section, **changes):
    """Returns the parsed config.json of a small model with one layer type."""
    return {"model_type": "ovq_hybrid", "vocab_size": 101, "hidden_size": 48,
            "num_hidden_layers": 2, "intermediate_size": 0, "layer_types": [layer_type] * 2,
            **section, **changes}


# format -> (config.json, fields that only the published file has, likewise tensors, by shape, a
# seed). Seeds are those, out of 24, with which float32 comes nearest to float64: one model in
# twenty is far off.
FIXTURES = {
    # the MLP's width is computed from hidden_ratio; files older than March 2025 have an unused D
    "fla-gated_deltanet": (_fixture("gated_delta_net", {"gdn": {
        "num_heads": 2, "num_v_heads": 4, "head_dim": 16, "value_head_dim": 24, "conv_size": 4,
        "allow_neg_eigval": True}}, intermediate_size=256, rms_norm_eps=1e-6), {},
        {f"model.layers.{i}.self_attn.D": (4,) for i in range(2)}, 7),
    "fla-mesa_net": (_fixture("mesa_net", {"mesa_net": {
        "num_heads": 3, "head_dim": 16, "use_output_gate": True, "lambda_lower_bound": 0.5,
        "max_cg_step_training": 20}}, intermediate_size=64, tie_word_embeddings=True), {}, {}, 10),
    "fla-mamba2": (_fixture("mamba2", {"mamba2": {
        "num_heads": 6, "head_dim": 16, "state_size": 24, "n_groups": 2, "use_bias": True}}), {},
        {}, 23),
    "hf-mamba2": (_fixture("mamba2", {"mamba2": {
        "num_heads": 6, "head_dim": 16, "state_size": 24, "dt_limit": [0.01, 0.5]}},
        tie_word_embeddings=True), {}, {}, 18),
    # 101 tokens, whose embedding is padded to a multiple of 16
    "state-spaces-mamba2": (_fixture("mamba2", {"mamba2": {
        "num_heads": 6, "head_dim": 16, "state_size": 32}}, vocab_size=112,
        tie_word_embeddings=True), {"vocab_size": 101}, {}, 19),
}
_FIXTURE_LENGTHS = (1, 7, 65, 150)


@torch.no_grad()
def randomize(model, seed):
    """Sets random weights with which every part of the model affects the logits."""
    random = np.random.default_rng(seed)  # numpy gives the same numbers on every machine

    def normal(parameter, mean, std):
        parameter.copy_(mean + std * torch.from_numpy(random.standard_normal(parameter.shape)))

    for name, parameter in model.named_parameters():
        leaf = name.split(".")[-2] if name.endswith((".weight", ".bias")) else name.split(".")[-1]
        if name.endswith(".bias"):
            normal(parameter, 1 if leaf == "a_proj" else 0, 0.5)
        elif "norm" in leaf or leaf == "D":
            normal(parameter, 1, 0.3)
        elif leaf.endswith("conv1d"):
            normal(parameter, 0, 0.5)
        elif leaf == "A_log":
            normal(parameter, 0.5, 0.7)
        elif leaf == "dt_bias":
            normal(parameter, -3, 1.5)  # half lives from a token to a hundred
        elif leaf == "lambda_params":
            normal(parameter, 0, 1)
        else:
            normal(parameter, 0, parameter.shape[-1] ** -0.5)


@torch.no_grad()
def write_fixture(name, out):
    """Writes a folder of tests/golden/fla."""
    raw, fields, shapes, seed = FIXTURES[name]
    model = OvqModel(config_from_dict(raw))
    randomize(model, seed)
    random = np.random.default_rng((seed, 1))
    write_published(model, name, out, fields, {
        tensor: torch.from_numpy(random.standard_normal(shape)).float()
        for tensor, shape in shapes.items()})
    n_tokens = fields.get("vocab_size", raw["vocab_size"])
    sequences = [random.integers(n_tokens, size=length).tolist() for length in _FIXTURE_LENGTHS]
    with open(os.path.join(out, "tokens.json"), "w", encoding="utf-8") as file:
        json.dump({"sequences": sequences}, file)
        file.write("\n")
    model, model.compute_dtype = model.double(), torch.float64
    save_safetensors(os.path.join(out, "expected.safetensors"), {
        f"logits.{i}": model(torch.tensor([sequence]))[0].float()
        for i, sequence in enumerate(sequences)})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="native model folder")
    parser.add_argument("--format", choices=FORMATS, help="of the model folder to write")
    parser.add_argument("--fixtures", action="store_true", help="all formats' random models")
    parser.add_argument("--out", required=True, help="folder to write, of --fixtures a folder each")
    args = parser.parse_args()
    if args.fixtures:
        for name in FIXTURES:
            write_fixture(name, os.path.join(args.out, name))
    elif args.model and args.format:
        write_published(load_model(args.model), args.format, args.out)
    else:
        parser.error("--model and --format, or --fixtures, are needed")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        sys.exit(f"published.py: {error}")
