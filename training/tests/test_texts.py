"""A corpus of texts: from Debian packages to a folder, its tokenizer, and contexts of whole documents."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

import support
import chat_tokenizer
import package_texts
from chat.bpe import load_tokenizer
from data import DataError, DocumentSampler
from sources import CorpusSource
from texts import BEGIN, Texts

FUNCTION = "def function(value):\n    return value + 1  # 100 ü\n"


class TextsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        support.write_file(self.root, "train/one.txt", FUNCTION * 30)
        support.write_file(self.root, "train/two.txt", "x = [1, 2, 3]\n" * 20)
        support.write_file(self.root, "held-out/three.txt", FUNCTION * 8 + "y = value(9)\n")
        support.write_file(self.root, "train/notes.md", "This is no text of the corpus.")

    def train_tokenizer(self, size=300):
        arguments = ["chat_tokenizer.py", "--texts", os.path.join(self.root, "train"), "--vocab-size", str(size), "--out", self.root]
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(io.StringIO()):
            chat_tokenizer.main()

    def test_documents_are_whole_texts_in_the_tokenizers_tokens(self):
        self.train_tokenizer()
        texts, tokenizer = Texts(self.root), load_tokenizer(os.path.join(self.root, "tokenizer.json"))
        self.assertEqual(list(texts.train), ["one.txt", "two.txt"])
        self.assertEqual(list(texts.held_out), ["three.txt"])
        for name, text in (("one.txt", FUNCTION * 30), ("two.txt", "x = [1, 2, 3]\n" * 20)):
            stream = texts.train[name]
            self.assertEqual(stream[0], BEGIN)
            self.assertEqual(tokenizer.decode(stream[1:].tolist()), text)
            self.assertEqual(texts.n_bytes(stream), len(text.encode()))
        self.assertEqual(texts.vocab_size, tokenizer.size)
        self.assertIn("function", tokenizer.vocab)  # the most frequent word of these texts became one token
        before = texts.fingerprint
        support.write_file(self.root, "held-out/three.txt", FUNCTION * 9)
        self.assertNotEqual(Texts(self.root).fingerprint, before)

    def test_a_context_begins_with_the_first_token_and_progress_is_in_bits_per_byte(self):
        self.train_tokenizer()
        texts = Texts(self.root)
        inputs, targets = texts.sampler(0).next(16, 4)
        self.assertIsInstance(texts.sampler(0), DocumentSampler)
        np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
        self.assertEqual(inputs[:, 0].tolist(), [BEGIN] * 4)
        source = CorpusSource(texts, 16, 0)
        _, held_out = texts.held_out_sample(16, CorpusSource._SAMPLE_TOKENS // 16)
        self.assertNotIn(BEGIN, held_out)
        with mock.patch("sources.token_bits", lambda model, inputs, targets: np.full(targets.shape, 2, np.float32)):
            bits = source.measure(None, mock.Mock(map=map))
        self.assertAlmostEqual(bits, 2 * held_out.size / texts.n_bytes(held_out), places=6)

    def test_a_folder_that_lacks_something_is_an_error(self):
        with self.assertRaisesRegex(OSError, "tokenizer.json"):
            Texts(self.root)
        self.train_tokenizer()
        os.remove(os.path.join(self.root, "held-out", "three.txt"))
        with self.assertRaisesRegex(DataError, "held-out: no .txt files"):
            Texts(self.root)

    def test_a_text_that_is_held_out_is_not_trained_on(self):
        self.train_tokenizer()
        support.write_file(self.root, "train/three.txt", FUNCTION * 8)
        with self.assertRaisesRegex(DataError, "three.txt: in train and in held-out"):
            Texts(self.root)
        package_texts.write_text(self.root, "held-out", "three", FUNCTION.encode() * 8)  # of a list that holds it out
        self.assertEqual((list(Texts(self.root).train), list(Texts(self.root).held_out)), (["one.txt", "two.txt"], ["three.txt"]))

    def test_more_tokens_than_a_stream_can_have_are_refused(self):
        with mock.patch("texts.load_tokenizer", lambda path: mock.Mock(size=(1 << 16) + 1)), \
                self.assertRaisesRegex(DataError, "tokenizer.json has 65537 tokens, more than 65536"):
            Texts(self.root)


class PackageTextsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def test_packages_are_to_train_on_or_held_out(self):
        path = os.path.join(self.root, "packages.txt")
        support.write_file(self.root, "packages.txt", "python3-one\npython3-two held-out\n")
        self.assertEqual(package_texts.read_packages(path), {"python3-one": "train", "python3-two": "held-out"})
        for wrong in ("python3-one held out", "python3-one\npython3-one", "python3-one test"):
            support.write_file(self.root, "packages.txt", wrong + "\n")
            with self.assertRaisesRegex(ValueError, "packages.txt: 'python3-one"):
                package_texts.read_packages(path)

    def test_the_list_that_ships_is_valid_and_holds_nine_out(self):
        packages = package_texts.read_packages(os.path.join(support.TRAINING, "code-packages.txt"))
        self.assertEqual(list(packages.values()).count("held-out"), 9)
        self.assertEqual(list(packages), sorted(packages))

    def test_a_text_has_the_files_in_order_up_to_its_size(self):
        base = "usr/lib/python3/dist-packages/"
        for name, content in (("b.py", "b = 2\n"), ("a/c.py", "c = 3\n"), ("a/large.py", "x" * 100_001), ("d.pyi", "d: int\n"),
                              ("z.py", "z = 26\n")):
            support.write_file(self.root, base + name, content)
        support.write_file(self.root, "usr/share/doc/example.py", "no = 1\n")
        with open(os.path.join(self.root, base, "latin.py"), "wb") as file:
            file.write(b"# \xfc\n")
        os.symlink("b.py", os.path.join(self.root, base, "again.py"))
        whole = b"# file: a/c.py\nc = 3\n# file: b.py\nb = 2\n# file: z.py\nz = 26\n"
        self.assertEqual(package_texts.package_text(self.root, 1000), whole)
        self.assertEqual(package_texts.package_text(self.root, len(whole) - 1), whole[:whole.index(b"# file: z")])


if __name__ == "__main__":
    unittest.main()
