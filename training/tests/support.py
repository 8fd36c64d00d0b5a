"""Shared by tests: the import path, a tiny configuration and a tiny corpus."""

import os
import sys

TRAINING = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TRAINING)

from data import HELD_OUT_DOCUMENTS, MIN_DOCUMENT_BYTES  # noqa: E402


def tiny_config(**changes):
    """Returns the parsed config.json of a model that runs in milliseconds."""
    raw = {"model_type": "ovq_hybrid", "vocab_size": 258, "hidden_size": 16,
           "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8,
           "intermediate_size": 24, "tie_word_embeddings": True, "sliding_window": 8,
           "layer_types": ["sliding_attention", "ovq_attention"],
           "ovq": {"chunk_size": 8, "max_centroids": 16}, "tokenizer": "bytes",
           "bos_token_id": 256, "eos_token_id": 257}
    return {**raw, **changes}


def shared_out_config():
    """Two full attention layers between sliding ones, with unequal shares by layer and by head."""
    raw = tiny_config(layer_types=["sliding_attention", "full_attention"] * 2, num_hidden_layers=4)
    raw["ovq"]["shares"] = [1.5, [0.75, 0.25]]
    return raw


def write_file(root, path, text):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_corpus(root):
    """Writes a miniature standard library: every held-out name, and three modules to train on.

    alpha.py and the package zeta are large enough for documents, small.py is not."""
    for name in HELD_OUT_DOCUMENTS:
        write_file(root, name if name.endswith(".py") else f"{name}/__init__.py",
                   f"held_out = {name!r}\n" * 20)
    large = "".join(f"def f_{i:05d}():\n    return {i:05d}\n" for i in range(600))
    assert len(large) > MIN_DOCUMENT_BYTES
    write_file(root, "alpha.py", large)
    write_file(root, "small.py", "small = 1\n" * 30)
    write_file(root, "zeta/__init__.py", "zeta = 1\n")
    write_file(root, "zeta/core.py", large)
