"""Streams of a recall task and their queries, with a session whose answers are known."""

import argparse
import io
import types
import unittest
from unittest import mock

import numpy as np

import support  # noqa: F401: finds the programs
import long_stream
from tasks import make_task

TASK = make_task({"name": "basic_icr", "key_tokens": 3, "value_tokens": 3, "n_symbols": 16})


class FakeClient:
    """Remembers pairs among the last `window` tokens, for any number of sessions."""

    def __init__(self, window):
        self._window, self.tokens, self.deleted = window, [], []

    def create_session(self, *, memory, max_centroids):
        self.tokens, self.made = [], (memory, max_centroids)
        return types.SimpleNamespace(session_id="s")

    def delete_session(self, session_id):
        self.deleted.append(session_id)

    def generate(self, prompt, *, session_id, max_tokens, temperature, ignore_eos):
        del session_id, temperature, ignore_eos
        self.tokens += prompt
        answer = []
        if max_tokens:
            known, key = self.tokens[-self._window:], prompt[-4:]
            starts = [i for i in range(len(known) - 8) if known[i:i + 4] == key]
            answer = known[starts[0] + 4:starts[0] + 7] if starts else [0] * 3
            self.tokens += answer
        yield None
        yield types.SimpleNamespace(token_ids=answer)
        yield types.SimpleNamespace(usage=types.SimpleNamespace(merged_tokens=1, state_bytes=2))


class LongStreamTest(unittest.TestCase):
    def args(self, **changes):
        return argparse.Namespace(**{"marks": [512, 2048], "pairs": 8, "filler": "repeated", "pool": 4,
                                     "seed": 0, "centroids": 9, **changes})

    def test_told_pairs_are_nowhere_else(self):
        for filler, distinct in (("repeated", 5 * 8 + 4), ("fresh", 256)):
            stream, said = long_stream.make_stream(TASK, self.args(filler=filler),
                                                   np.random.default_rng(0))
            self.assertEqual(said, [0, 32, 56, 128, 248])
            self.assertEqual(stream.shape, (256, 8))
            self.assertEqual(len(np.unique(stream[:, :3], axis=0)), distinct)
            told = np.concatenate([stream[place:place + 8] for place in said])
            self.assertEqual(sum((told[0] == row).all() for row in stream), 1)
            self.assertTrue((stream[:, 3] == 16).all() and (stream[:, 7] == 17).all())

    def test_marks_too_close_together(self):
        with self.assertRaisesRegex(ValueError, "--marks: too close"):
            long_stream.places([64, 70], 8)

    def test_a_task_with_too_few_keys_is_named(self):
        for changes in ({"filler": "fresh", "marks": [512, 65536]}, {"pool": 4096}):
            with self.assertRaisesRegex(ValueError, "^--filler: .* distinct keys, and the task has 4096"):
                long_stream.make_stream(TASK, self.args(**changes), np.random.default_rng(0))

    def test_asks_what_was_said_before_the_mark(self):
        args = self.args()
        stream, said = long_stream.make_stream(TASK, args, np.random.default_rng(0))
        client = FakeClient(window=800)
        with mock.patch("sys.stdout", io.StringIO()):
            rows = long_stream.examine(client, TASK, stream, said, 512, "exact", args)
        self.assertEqual([row["said"] for row in rows], [0, 256, 448])
        self.assertEqual([float(row["accuracy"]) for row in rows], [1, 1, 1])
        self.assertEqual((client.made, client.deleted), (("exact", None), ["s"]))
        self.assertEqual(client.tokens[:512], stream[:64].ravel().tolist())
        self.assertEqual(client.tokens[512], 18)
        client = FakeClient(window=300)
        with mock.patch("sys.stdout", io.StringIO()):
            rows = long_stream.examine(client, TASK, stream, said, 512, "paper", args)
        self.assertLess(float(rows[0]["accuracy"]), 0.5)
        self.assertEqual(float(rows[2]["accuracy"]), 1)
        self.assertEqual(client.made, ("paper", 9))


if __name__ == "__main__":
    unittest.main()
