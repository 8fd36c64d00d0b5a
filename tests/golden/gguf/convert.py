#!/usr/bin/python3
"""Converts model folders by llama.cpp's own converter.

    convert.py LLAMA_CPP FOLDER OUT.gguf [--split TENSORS] [--fuse] [--drafts]

LLAMA_CPP is a checkout of github.com/ggml-org/llama.cpp. Debian's torch and numpy suffice: what else the converter
imports is stood in for here, and so are the element types that torch 1.13 lacks, which no file here has. The folders
have no tokenizer, so the files have none.
"""

import argparse
import pathlib
import sys
import types

import torch


class Missing(types.ModuleType):
    """A module whose classes fail when they are used."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        class Stub:
            @classmethod
            def from_pretrained(cls, *_, **__):
                raise OSError(f"no {name} here")
        return Stub


class NoBar:
    """A bar of progress that shows nothing."""

    def __init__(self, *_, **__):
        pass

    def update(self, *_, **__):
        pass

    set_description = reset = close = update


def stand_in():
    for name in ("transformers", "sentencepiece"):
        sys.modules[name] = Missing(name)
    bars = types.ModuleType("tqdm")
    bars.tqdm = NoBar
    sys.modules["tqdm"] = bars
    for name in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
                 "float8_e8m0fnu"):
        if not hasattr(torch, name):
            setattr(torch, name, name)


def convert(llama_cpp, folder, out, split=0, fuse=False, drafts=False):
    """Writes the model of a folder. split: tensors of a part; fuse: experts' gate and up are one tensor; drafts: with
    the layers that draft tokens."""
    stand_in()
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    hparams = ModelBase.load_hparams(folder, False)
    hparams.setdefault("d_head", hparams.get("mamba_head_dim", 1))  # else a head must have 64 channels
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    kind.set_vocab = lambda self: None
    kind.no_mtp = not drafts
    kind(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, split_max_tensors=split, fuse_gate_up_exps=fuse,
         hparams=hparams).write()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--split", type=int, default=0, metavar="TENSORS", help="tensors of a part")
    parser.add_argument("--fuse", action="store_true", help="experts' gate and up in one tensor")
    parser.add_argument("--drafts", action="store_true", help="with the layers that draft tokens")
    convert(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
