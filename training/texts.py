"""A corpus of texts in tokens of its own: a folder with .txt files in train and held-out, each a document, and a
tokenizer.json.

package_texts.py makes the texts, chat_tokenizer.py the tokenizer, whose first token, 0, begins a document and every
context."""

import hashlib
import os

import numpy as np

from chat.bpe import load_tokenizer
from data import DataError, DocumentSampler, spread_contexts

BEGIN = 0
_MOST_TOKENS = 1 << 16  # of streams of uint16


class Texts:
    """Long documents: train and held_out, each {name: uint16 [n_tokens]}."""

    def __init__(self, root):
        tokenizer = load_tokenizer(os.path.join(root, "tokenizer.json"))
        self.vocab_size = tokenizer.size
        if self.vocab_size > _MOST_TOKENS:
            raise DataError(f"{root}: tokenizer.json has {self.vocab_size} tokens, more than {_MOST_TOKENS}, the most "
                            "that a stream can tell apart")
        self._token_bytes = tokenizer.token_bytes()
        self.train, self.held_out = (self._read(os.path.join(root, part), tokenizer) for part in ("train", "held-out"))
        both = sorted(self.train.keys() & self.held_out.keys())
        if both:
            raise DataError(f"{root}: {', '.join(both)}: in train and in held-out")
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            for name, stream in part.items():
                digest.update(name.encode() + b"\0" + stream.astype("<u2").tobytes())
        self.fingerprint = digest.hexdigest()

    def _read(self, folder, tokenizer):
        documents = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".txt"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    documents[name] = np.array([BEGIN, *tokenizer.encode(file.read())], np.uint16)
        if not documents:
            raise DataError(f"{folder}: no .txt files")
        return documents

    def n_bytes(self, tokens):
        """Returns the number of bytes that tokens stand for."""
        return int(self._token_bytes[tokens].sum())

    def sampler(self, seed):
        return DocumentSampler(self.train, seed)

    def held_out_sample(self, length, count):
        return spread_contexts(list(self.held_out.values()), length, count)
