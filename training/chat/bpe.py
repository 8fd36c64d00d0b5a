"""A byte-level BPE tokenizer: trained on counted texts, written as a tokenizer.json.

Words never carry the space before them, so that a word of a sentence has the same tokens inside a
JSON string: a model then copies it token by token. Digits stand alone. Frequent little words carry
the space behind them, and JSON's punctuation is joined, both of which shorten texts."""

import collections
import functools
import heapq
import json
import re
import sys
import unicodedata

import numpy as np

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
LITTLE_WORDS = ("the a an is are of to in and or you I it that for with my your me be not do can what "
                "by on as if this use").split()
# One expression for Oniguruma and for Python, which spell letters and digits differently.
_PATTERN = (r"(?:" + "|".join(sorted(LITTLE_WORDS, key=len, reverse=True)) + r") (?=[^\s])"
            r"|LETTERS|DIGIT|\\[nrt\"\\]"
            r"|[\"{}\[\]:,]+(?: [\"{}\[\]:,]+)* ?"
            r"|\n+ *| +|\s|OTHER ?")
ONIGURUMA = (_PATTERN.replace("LETTERS", r"\p{L}+").replace("DIGIT", r"\p{N}")
             .replace("OTHER", r"[^\s\p{L}\p{N}]"))


def _numerals():
    """Returns the numbers that Python counts to the letters of its \\w, or to nothing, such as \u00b2 and \u2167."""
    return "".join(char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in ("Nl", "No"))


def _python_pattern():
    """Returns _PATTERN with the same meaning for Python, whose \\s has four separators more than Oniguruma's."""
    numerals, separators = _numerals(), r"\x1c-\x1f"
    return (_PATTERN.replace(r"[^\s]", rf"[\S{separators}]").replace(r"\s", rf"[^\S{separators}]")
            .replace("LETTERS", rf"[^\W\d_{numerals}]+").replace("DIGIT", rf"[\d{numerals}]")
            .replace("OTHER", rf"(?:[^\w\s{numerals}]|[_{separators}])"))


_PYTHON = re.compile(_python_pattern())


def _byte_alphabet():
    """Returns the character that stands for each byte in a byte-level tokenizer.json."""
    shown = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown},
            **{byte: chr(256 + i) for i, byte in enumerate(hidden)}}


_ALPHABET = _byte_alphabet()
_BYTES = {char: byte for byte, char in _ALPHABET.items()}


def pieces(text):
    """Cuts a text without added tokens into pieces that BPE does not cross."""
    return _PYTHON.findall(text)


def _spelled(piece):
    return "".join(_ALPHABET[byte] for byte in piece.encode())


def learn_merges(counts, n_merges):
    """Returns the n_merges most frequent pairs in the order in which BPE joins them.

    counts: {piece: how often it occurs}. Ties go to the pair that is first in the alphabet."""
    words = [(list(_spelled(piece)), count) for piece, count in sorted(counts.items())]
    totals, places = collections.Counter(), collections.defaultdict(set)
    for i, (symbols, count) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            totals[pair] += count
            places[pair].add(i)
    queue = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(queue)
    merges = []
    while queue and len(merges) < n_merges:
        total, pair = heapq.heappop(queue)
        if totals[pair] != -total:
            if totals[pair] > 0:
                heapq.heappush(queue, (-totals[pair], pair))
            continue
        merges.append(pair)
        changed = set()
        for i in places.pop(pair):
            symbols, count = words[i]
            for old in zip(symbols, symbols[1:]):
                totals[old] -= count
            symbols[:] = _joined(symbols, pair)
            for new in zip(symbols, symbols[1:]):
                totals[new] += count
                places[new].add(i)
                changed.add(new)
        for new in changed:
            heapq.heappush(queue, (-totals[new], new))
    return merges


def _joined(symbols, pair):
    joined, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            joined.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            joined.append(symbols[i])
            i += 1
    return joined


class Tokenizer:
    """Text to ids and back, as a server computes them from the same tokenizer.json."""

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self._ranks = {pair: i for i, pair in enumerate(self.merges)}
        vocab = [*_ALPHABET.values(), *("".join(pair) for pair in self.merges)]
        self.added = {text: i for i, text in enumerate(SPECIAL + MARKS)}
        self.vocab = {text: len(self.added) + i for i, text in enumerate(vocab)}
        if len(self.vocab) != len(vocab):
            raise ValueError("two merges make the same token")
        self._texts = {i: text for text, i in {**self.vocab, **self.added}.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, self.added)) + ")")
        self._piece_ids = functools.lru_cache(maxsize=200_000)(self._encode_piece)

    @property
    def size(self):
        return len(self._texts)

    def _encode_piece(self, piece):
        symbols = list(_spelled(piece))
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if pair not in self._ranks:
                break
            symbols = _joined(symbols, pair)
        return tuple(self.vocab[symbol] for symbol in symbols)

    def encode(self, text):
        ids = []
        for part in self._split.split(text):
            if part in self.added:
                ids.append(self.added[part])
            else:
                for piece in pieces(part):
                    ids.extend(self._piece_ids(piece))
        return ids

    def decode(self, ids):
        spoken = b"".join(self._texts[i].encode() if self._texts[i] in self.added else
                          bytes(_BYTES[char] for char in self._texts[i]) for i in ids)
        return spoken.decode(errors="replace")

    def token_bytes(self):
        """Returns the bytes that each token stands for, int64 [size]; 0: an added token."""
        lengths = np.zeros(self.size, np.int64)
        for symbols, i in self.vocab.items():  # a byte is a character here
            lengths[i] = len(symbols)
        return lengths

    def to_json(self):
        added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": text in SPECIAL} for text, i in self.added.items()]
        split = {"type": "Split", "pattern": {"Regex": ONIGURUMA}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                 "ignore_merges": False, "vocab": {**self.added, **self.vocab},
                 "merges": [list(pair) for pair in self.merges]}
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
                "post_processor": None, "decoder": level, "model": model}


def load_tokenizer(path):
    """Reads a tokenizer.json that this module wrote."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    tokenizer = Tokenizer(content["model"]["merges"])
    if tokenizer.to_json() != content:
        raise ValueError(f"{path}: not written by chat/bpe.py of this version")
    return tokenizer
