"""The byte corpus: its content, the held-out modules, and the samplers of contexts."""

import os
import tempfile
import unittest

import numpy as np

import support
from data import (BOS, EOS, HELD_OUT, HELD_OUT_DOCUMENTS, Corpus, DataError, Documents,
                  DocumentSampler, WindowSampler, context, n_bytes, spread_contexts)


def places(first, end):
    """Returns a stream: bos, then for each place from 1 on the number first + place."""
    return np.array([BOS, *range(first + 1, end)], np.uint16)


class CorpusTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        support.write_corpus(self.root)

    def test_held_out_modules_are_whole_and_not_in_training(self):
        for excluded in ("test/a.py", "dist-packages/b.py", "_sysconfigdata_x.py"):
            support.write_file(self.root, excluded, "excluded")
        for corpus, names in ((Corpus(self.root), HELD_OUT),
                              (Documents(self.root), HELD_OUT_DOCUMENTS)):
            self.assertEqual(sorted(corpus.held_out), sorted(names))
            streams = [corpus.train] if names is HELD_OUT else list(corpus.train.values())
            for stream in streams:
                text = bytes(stream[stream < 256].astype(np.uint8))
                self.assertEqual(n_bytes(stream), len(text))
                self.assertNotIn(b"excluded", text)
                for name in names:
                    self.assertNotIn(f"held_out = {name!r}".encode(), text)
            self.assertEqual(streams[0][[0, -1]].tolist(), [BOS, EOS])

    def test_a_document_is_a_package_or_a_large_module(self):
        documents = Documents(self.root)
        self.assertEqual(list(documents.train), ["alpha.py", "zeta"])
        stream = documents.train["zeta"]
        self.assertEqual(np.flatnonzero(stream >= 256).tolist(), [0, len(stream) - 1])
        text = bytes(stream[1:-1].astype(np.uint8)).decode()
        begin = "# zeta/__init__.py\nzeta = 1\n# zeta/core.py\ndef f_00000():\n"
        self.assertTrue(text.startswith(begin), text[:100])
        changed = documents.fingerprint
        support.write_file(self.root, "zeta/core.py", text)
        self.assertNotEqual(Documents(self.root).fingerprint, changed)

    def test_a_corpus_without_documents_is_an_error(self):
        for name in ("alpha.py", "zeta/core.py"):
            os.remove(os.path.join(self.root, name))
        with self.assertRaisesRegex(DataError, "no module or package of 16384 bytes"):
            Documents(self.root)

    def test_a_missing_held_out_module_is_named(self):
        os.remove(os.path.join(self.root, "tarfile.py"))
        with self.assertRaisesRegex(DataError, "tarfile.py"):
            Corpus(self.root)
        support.write_file(self.root, "tarfile.py", "back = 1\n")
        os.remove(os.path.join(self.root, "json/__init__.py"))
        Corpus(self.root)
        with self.assertRaisesRegex(DataError, "json"):
            Documents(self.root)

    def test_contexts_predict_the_next_byte_after_bos(self):
        inputs, targets = context(places(10, 20), 3, 4)
        self.assertEqual(inputs.tolist(), [BOS, 13, 14, 15])
        self.assertEqual(targets.tolist(), [13, 14, 15, 16])

    def test_an_epoch_covers_the_stream_once_and_resumes(self):
        stream = np.arange(1000, dtype=np.uint16)
        sampler = WindowSampler(stream, seed=1)
        seen = np.concatenate([sampler.next(10, 9)[1].ravel() for _ in range(11)])
        self.assertEqual(len(set(seen.tolist())), len(seen))
        other = WindowSampler(stream, seed=1)
        other.restore(sampler.state())
        for length in (10, 10, 25):
            np.testing.assert_array_equal(sampler.next(length, 4)[0], other.next(length, 4)[0])


    def test_document_contexts_lie_within_documents_at_random_places(self):
        # token = 1000 * document + place, so that every context shows its origin
        sizes = {"a": 41, "b": 121, "c": 10}
        documents = {name: places(1000 * i, 1000 * i + size)
                     for i, (name, size) in enumerate(sizes.items())}
        n, length = 4000, 16
        inputs, targets = DocumentSampler(documents, seed=1).next(length, n)
        self.assertTrue((inputs[:, 0] == BOS).all())
        np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
        self.assertTrue((np.diff(targets) == 1).all())
        owner, begin = np.divmod(targets[:, 0], 1000)
        # 40 and 120 tokens that are not the first, so a quarter and three quarters of the contexts
        shares = np.bincount(owner) / n
        self.assertEqual(len(shares), 2)
        self.assertLess(abs(shares[0] - 0.25), 5 * (0.25 * 0.75 / n) ** 0.5)
        for i, size in ((0, 41), (1, 121)):
            self.assertEqual(set(begin[owner == i]), set(range(1, size - length + 1)))
        with self.assertRaisesRegex(DataError, "context length 121 .* 120 tokens"):
            DocumentSampler(documents, seed=1).next(121, 1)
        DocumentSampler(documents, seed=1).next(120, 1)

    def test_a_document_sampler_resumes(self):
        documents = {"a": np.arange(500, dtype=np.uint16)}
        sampler, other = (DocumentSampler(documents, seed=1) for _ in range(2))
        first = sampler.next(10, 4)[0]
        other.restore(sampler.state())
        for length in (10, 10, 25):
            expected = sampler.next(length, 4)[0]
            np.testing.assert_array_equal(other.next(length, 4)[0], expected)
            self.assertFalse(np.array_equal(first[:, :10], expected[:, :10]))

    def test_spread_contexts_reach_from_the_first_place_to_the_last(self):
        streams = [places(0, 10), places(100, 103), places(200, 220)]
        inputs, targets = spread_contexts(streams, 8, 14)
        # places for 8 tokens after the first: 2 in the first stream, none, 12 in the last
        self.assertEqual(targets[:, 0].tolist(), [1, 2, *range(201, 213)])
        self.assertEqual(targets[-1].tolist(), list(range(212, 220)))
        self.assertTrue((inputs[:, 0] == BOS).all())
        with self.assertRaisesRegex(DataError, "context length 20 .* 20 tokens"):
            spread_contexts(streams, 20, 1)


if __name__ == "__main__":
    unittest.main()
