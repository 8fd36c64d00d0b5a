"""The corpus: the Python standard library's own sources, as bytes.

Token ids are byte values; 256 begins a document and every context, 257 ends a document. A document
is a file; files stand in path order, so a package's files follow each other and long contexts stay
on one subject. Run this file to see what is in the corpus and its fingerprint.
"""

import argparse
import hashlib
import os
import sys

import numpy as np

BOS, EOS = 256, 257
DEFAULT_ROOT = "/usr/lib/python3.11"
# Whole modules and packages that training never sees.
HELD_OUT = ("argparse.py", "http", "statistics.py", "tarfile.py")
# Not part of libpython3.11-minimal and libpython3.11-stdlib, which every Debian 12 machine with
# python3 has, or not hand-written: `encodings` is generated tables, `test` the regression tests.
EXCLUDED = ("__pycache__", "dist-packages", "site-packages", "lib-dynload", "distutils",
            "encodings", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo")
EXCLUDED_PREFIXES = ("_sysconfigdata", "config-")


class DataError(ValueError):
    """The corpus is not where it should be."""


def corpus_files(root):
    """Sorted paths, relative to root, of the corpus' files."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in EXCLUDED
                         and not name.startswith(EXCLUDED_PREFIXES)]
        for name in names:
            path = os.path.join(folder, name)
            # links lead out of the library (sitecustomize.py to /etc)
            if name.endswith(".py") and not name.startswith(EXCLUDED_PREFIXES) \
                    and not os.path.islink(path):
                found.append(os.path.relpath(path, root))
    return sorted(found)


def _read(root, path):
    with open(os.path.join(root, path), "rb") as file:
        return file.read()


def _documents(contents):
    """bos, bytes, eos for each of the given byte strings, as uint16 [n_tokens]."""
    parts = []
    for content in contents:
        parts += ([BOS], np.frombuffer(content, np.uint8), [EOS])
    return np.concatenate([np.asarray(part, np.uint16) for part in parts])


class Corpus:
    """Token streams: train [n_tokens] and held_out {module or package: [n_tokens]}, uint16."""

    def __init__(self, root=DEFAULT_ROOT):
        self.root = root
        self.files = corpus_files(root)
        groups = {name: [] for name in HELD_OUT}
        train = []
        digest = hashlib.sha256()
        for path in self.files:
            content = _read(root, path)
            digest.update(path.encode() + b"\0" + content + b"\0")
            groups.get(path.split(os.sep)[0], train).append(content)
        for name, contents in groups.items():
            if not contents:
                raise DataError(f"{root}: {name}, which is held out, is missing")
        if not train:
            raise DataError(f"{root}: no Python sources besides the held-out ones")
        self.fingerprint = digest.hexdigest()
        self.train_bytes = sum(map(len, train))
        self.held_out_bytes = {name: sum(map(len, contents)) for name, contents in groups.items()}
        self.train = _documents(train)
        self.held_out = {name: _documents(contents) for name, contents in groups.items()}


def context(stream, begin, length):
    """(inputs, targets), each [length]: bos starts every context, as it starts every session."""
    targets = stream[begin:begin + length].astype(np.int64)
    return np.concatenate(([BOS], targets[:-1])), targets


class WindowSampler:
    """Batches of training contexts; every epoch covers the stream once, in random order.

    An epoch cuts the stream into contexts at a random shift. A change of the length starts a new
    epoch. The order depends on (seed, epoch) alone, so three integers resume it.
    """

    def __init__(self, stream, seed):
        self.stream, self.seed = stream, seed
        self.epoch, self.cursor, self.length = -1, 0, 0
        self.order = np.empty(0, np.int64)  # [n_windows] first tokens

    def _start_epoch(self, epoch, length):
        if length >= len(self.stream):
            raise DataError(f"context length {length} does not fit {len(self.stream)} tokens")
        self.epoch, self.cursor, self.length = epoch, 0, length
        random = np.random.default_rng((self.seed, epoch))
        shift = random.integers(min(length, len(self.stream) - length))
        self.order = random.permutation(
            np.arange(shift, len(self.stream) - length + 1, length))

    def next(self, length, batch):
        """(inputs, targets), each int64 [batch, length]."""
        if length != self.length:
            self._start_epoch(self.epoch + 1, length)
        rows = []
        while len(rows) < batch:
            if self.cursor == len(self.order):
                self._start_epoch(self.epoch + 1, length)
            rows.append(context(self.stream, self.order[self.cursor], length))
            self.cursor += 1
        return tuple(np.stack(side) for side in zip(*rows))

    def state(self):
        return {"epoch": self.epoch, "cursor": self.cursor, "length": self.length}

    def restore(self, state):
        if state["length"]:
            self._start_epoch(state["epoch"], state["length"])
            self.cursor = state["cursor"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=DEFAULT_ROOT, help="folder of the standard library")
    corpus = Corpus(parser.parse_args().root)
    print(f"files             {len(corpus.files)}")
    print(f"training bytes    {corpus.train_bytes}")
    for name, n_bytes in corpus.held_out_bytes.items():
        print(f"held out          {n_bytes} bytes of {name}")
    share = sum(corpus.held_out_bytes.values())
    print(f"held-out share    {100 * share / (share + corpus.train_bytes):.2f}%")
    print(f"sha256            {corpus.fingerprint}")


if __name__ == "__main__":
    try:
        main()
    except (DataError, OSError) as error:
        sys.exit(f"data.py: {error}")
