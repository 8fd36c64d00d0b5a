"""The corpus: the sources of the Python standard library, as bytes.

Token ids are byte values; 256 begins a document and every context, 257 ends a document. Corpus is a
stream of files, on which the shipped model was trained. Documents holds whole packages and large
modules, for long contexts that stay on one subject. Run this file to list the documents, those held
out, and their fingerprints."""

import argparse
import hashlib
import os
import sys

import numpy as np

BOS, EOS = 256, 257
VOCAB_SIZE = 258
DEFAULT_ROOT = "/usr/lib/python3.11"
# Modules and packages that are held out from training, for Corpus and for Documents.
HELD_OUT = ("argparse.py", "http", "statistics.py", "tarfile.py")
HELD_OUT_DOCUMENTS = (*HELD_OUT, "json", "unittest")
# Smaller modules and packages are left out of the training documents.
MIN_DOCUMENT_BYTES = 16384
# Packages that are generated (`encodings`), regression tests (`test`), or not part of
# libpython3.11-minimal and libpython3.11-stdlib, which every Debian 12 machine with python3 has.
EXCLUDED = ("__pycache__", "dist-packages", "site-packages", "lib-dynload", "distutils",
            "encodings", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo")
EXCLUDED_PREFIXES = ("_sysconfigdata", "config-")


class DataError(ValueError):
    """The corpus was not found."""


def corpus_files(root):
    """Returns the sorted paths of the corpus's files, relative to root."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in EXCLUDED
                         and not name.startswith(EXCLUDED_PREFIXES)]
        for name in names:
            path = os.path.join(folder, name)
            # links lead out of the library (such as sitecustomize.py to /etc)
            if name.endswith(".py") and not name.startswith(EXCLUDED_PREFIXES) \
                    and not os.path.islink(path):
                found.append(os.path.relpath(path, root))
    return sorted(found)


def _read_library(root):
    """Returns {module or package: {path: content}}, both in path order."""
    library = {}
    for path in corpus_files(root):
        with open(os.path.join(root, path), "rb") as file:
            library.setdefault(path.split(os.sep)[0], {})[path] = file.read()
    return library


def _split_library(root, held_out):
    """Returns (train, held out), each in _read_library's form."""
    library = _read_library(root)
    for name in held_out:
        if name not in library:
            raise DataError(f"{root}: {name}, which is held out, is missing")
    kept = {name: library.pop(name) for name in held_out}
    if not library:
        raise DataError(f"{root}: no Python sources besides the held-out ones")
    return library, kept


def n_bytes(stream):
    """Returns the number of tokens that are not document marks."""
    return int(np.count_nonzero(stream < 256))


def _stream(contents):
    """Returns bos, bytes, eos for each of the given byte strings, as uint16 [n_tokens]."""
    parts = []
    for content in contents:
        parts += ([BOS], np.frombuffer(content, np.uint8), [EOS])
    return np.concatenate([np.asarray(part, np.uint16) for part in parts])


class Corpus:
    """Token streams: train [n_tokens] and held_out {module or package: [n_tokens]}, uint16.

    A document is a file; files are in path order, so a package's files are adjacent."""

    vocab_size, n_bytes = VOCAB_SIZE, staticmethod(n_bytes)

    def __init__(self, root=DEFAULT_ROOT):
        train, held_out = _split_library(root, HELD_OUT)
        files = {path: content for group in (*train.values(), *held_out.values())
                 for path, content in group.items()}
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(path.encode() + b"\0" + files[path] + b"\0")
        self.fingerprint = digest.hexdigest()
        self.n_files = len(files)
        self.train = _stream(content for group in train.values() for content in group.values())
        self.held_out = {name: _stream(group.values()) for name, group in held_out.items()}

    def sampler(self, seed):
        return WindowSampler(self.train, seed)

    def held_out_sample(self, length, count):
        """Like spread_contexts, but contexts also reach from one held-out file into the next."""
        return spread_contexts([np.concatenate(list(self.held_out.values()))], length, count)


def _document(files):
    """Returns bos, then every file's content after a comment with its path, then eos."""
    return _stream([b"".join(b"# " + path.encode() + b"\n" + content
                             for path, content in files.items())])


class Documents:
    """Long documents: train and held_out, each {module or package: [n_tokens]}, uint16.

    A document is a package with all its files in path order, or a module that is one file. Every
    training document has at least MIN_DOCUMENT_BYTES, so that contexts of up to that length come
    from the same documents whatever their length; the paper's section 8.6 filters its books by the
    same length. In Debian 12's library that keeps 100 of 187 modules and packages, but 92% of their
    bytes, with a median of 37,000 bytes a document. The six held-out documents (HELD_OUT_DOCUMENTS:
    Corpus's four and two packages more) have 48,000 to 250,000 bytes each."""

    vocab_size, n_bytes = VOCAB_SIZE, staticmethod(n_bytes)

    def __init__(self, root=DEFAULT_ROOT):
        train, held_out = _split_library(root, HELD_OUT_DOCUMENTS)
        self.held_out = {name: _document(files) for name, files in held_out.items()}
        self.train = {name: _document(files) for name, files in train.items()
                      if sum(map(len, files.values())) >= MIN_DOCUMENT_BYTES}
        if not self.train:
            raise DataError(f"{root}: no module or package of {MIN_DOCUMENT_BYTES} bytes besides "
                            "the held-out ones")
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            for name, stream in part.items():
                digest.update(name.encode() + b"\0" + stream.astype("<u2").tobytes())
        self.fingerprint = digest.hexdigest()

    def sampler(self, seed):
        return DocumentSampler(self.train, seed)

    def held_out_sample(self, length, count):
        return spread_contexts(list(self.held_out.values()), length, count)


def context(stream, begin, length):
    """Returns (inputs, targets), each [length]; the stream's first token, bos, starts every context, as it
    starts every session."""
    targets = stream[begin:begin + length].astype(np.int64)
    return np.concatenate((stream[:1].astype(np.int64), targets[:-1])), targets


def spread_contexts(streams, length, count):
    """Returns (inputs, targets), each [count, length]: contexts spread evenly over the streams."""
    # a context's own bos replaces the first token of a stream
    ends = np.cumsum([max(0, len(stream) - length) for stream in streams])
    if not ends[-1]:
        raise DataError(f"context length {length} does not fit {max(map(len, streams))} tokens")
    rows = []
    for place in np.linspace(0, ends[-1] - 1, count).astype(np.int64):
        i = int(np.searchsorted(ends, place, side="right"))
        rows.append(context(streams[i], 1 + place - (ends[i - 1] if i else 0), length))
    return tuple(np.stack(side) for side in zip(*rows))


class WindowSampler:
    """Batches of training contexts; every epoch covers the stream once, in random order.

    An epoch cuts the stream into contexts at a random shift. A change of the length starts a new
    epoch. The order depends only on (seed, epoch), so three integers suffice to resume."""

    def __init__(self, stream, seed):
        self.stream, self.seed = stream, seed
        self.epoch, self.cursor, self.length = -1, 0, 0
        self.order = np.empty(0, np.int64)  # [n_windows] index of each context's first token

    def _start_epoch(self, epoch, length):
        if length >= len(self.stream):
            raise DataError(f"context length {length} does not fit {len(self.stream)} tokens")
        self.epoch, self.cursor, self.length = epoch, 0, length
        random = np.random.default_rng((self.seed, epoch))
        shift = random.integers(min(length, len(self.stream) - length))
        self.order = random.permutation(
            np.arange(shift, len(self.stream) - length + 1, length))

    def next(self, length, batch):
        """Returns (inputs, targets), each int64 [batch, length]."""
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


class DocumentSampler:
    """Batches of training contexts, each from one document, at random places.

    Draws a document that is long enough, in proportion to its tokens, then a uniform place in it.
    So all documents' tokens are read equally often; within a document, tokens within a context's
    length of its ends are read less often. A batch depends only on the seed, its number and the
    length, so one integer suffices to resume."""

    def __init__(self, documents, seed):
        self.documents, self.seed, self.n_batches = list(documents.values()), seed, 0

    def next(self, length, batch):
        """Returns (inputs, targets), each int64 [batch, length]."""
        # a context's own bos replaces the document's
        sizes = np.array([len(document) - 1 for document in self.documents])
        if length > sizes.max():
            raise DataError(f"context length {length} does not fit any document: the longest has "
                            f"{sizes.max()} tokens")
        shares = np.where(sizes >= length, sizes, 0)
        random = np.random.default_rng((self.seed, self.n_batches))
        self.n_batches += 1
        rows = []
        for i in random.choice(len(sizes), size=batch, p=shares / shares.sum()):
            begin = 1 + random.integers(sizes[i] - length + 1)
            rows.append(context(self.documents[i], begin, length))
        return tuple(np.stack(side) for side in zip(*rows))

    def state(self):
        return {"n_batches": self.n_batches}

    def restore(self, state):
        self.n_batches = state["n_batches"]


def _report(title, corpus, train_streams):
    trained = sum(map(n_bytes, train_streams))
    held_out = {name: n_bytes(stream) for name, stream in corpus.held_out.items()}
    share = sum(held_out.values()) / (sum(held_out.values()) + trained)
    print(f"{title}\n  training bytes  {trained}")
    for name, size in held_out.items():
        print(f"  held out        {size} bytes of {name}")
    print(f"  held-out share  {100 * share:.2f}%\n  sha256          {corpus.fingerprint}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=DEFAULT_ROOT, help="folder of the standard library")
    root = parser.parse_args().root
    corpus, documents = Corpus(root), Documents(root)
    _report(f"stream of {corpus.n_files} files", corpus, [corpus.train])
    sizes = sorted(map(n_bytes, documents.train.values()))
    _report(f"{len(sizes)} training documents of {sizes[0]} to {sizes[-1]} bytes, median "
            f"{sizes[len(sizes) // 2]}", documents, documents.train.values())
    print("  " + ", ".join(sorted(documents.train)))


if __name__ == "__main__":
    try:
        main()
    except (DataError, OSError) as error:
        sys.exit(f"data.py: {error}")
