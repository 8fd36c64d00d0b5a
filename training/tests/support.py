"""What several tests need: the import path, a tiny configuration and a tiny corpus."""

import os
import sys

TRAINING = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TRAINING)

from data import HELD_OUT  # noqa: E402


def tiny_config(**changes):
    """The parsed config.json of a model that runs in milliseconds."""
    raw = {"model_type": "ovq_hybrid", "vocab_size": 258, "hidden_size": 16,
           "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8,
           "intermediate_size": 24, "tie_word_embeddings": True, "sliding_window": 8,
           "layer_types": ["sliding_attention", "ovq_attention"],
           "ovq": {"chunk_size": 8, "max_centroids": 16}, "tokenizer": "bytes",
           "bos_token_id": 256, "eos_token_id": 257}
    return {**raw, **changes}


def write_corpus(root):
    """A standard library in miniature: every held-out name and two modules to train on."""
    for name in HELD_OUT:
        path = os.path.join(root, name if name.endswith(".py") else f"{name}/__init__.py")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"held_out = {name!r}\n" * 20)
    for name in ("alpha.py", "zeta.py"):
        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
            file.writelines(f"def {name[:-3]}_{i}():\n    return {i}\n" for i in range(60))
