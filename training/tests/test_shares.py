"""Shares of rows by layer and by head: measurement, choice and output."""

import contextlib
import io
import itertools
import json
import math
import os
import tempfile
import types
import unittest
from unittest import mock

import numpy as np

import shares
from predictors import ServedPredictor

TASK = {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 60, "n_queries": 2}
KINDS = ["ovq_attention", "mamba2", "ovq_attention", "ovq_attention"]
WEIGHTS = (4, 0, 1)  # weight of each layer with rows in the loss
START = [7, 8]  # tokens that the tokenizer puts before a text


def cost(curve, share):
    known = sorted(curve.items())
    return np.interp(np.log(share), np.log([at for at, _ in known]), [bits for _, bits in known])


class ChoiceTest(unittest.TestCase):
    def test_the_sum_of_costs_is_the_least_of_all(self):
        random = np.random.default_rng(0)
        for n_layers in (1, 2, 3):
            for _ in range(5):
                curves = [dict(zip(shares.ladder(n_layers), sorted(random.random(9), reverse=True)))
                          for _ in range(n_layers)]
                found = shares.best_shares(curves)
                self.assertEqual(sum(found), n_layers)
                steps = np.arange(1, 16 * n_layers + 1) / 16
                least = min(sum(map(cost, curves, split))
                            for split in itertools.product(steps, repeat=n_layers)
                            if sum(split) == n_layers)
                self.assertAlmostEqual(sum(map(cost, curves, found)), least, places=9)

    def test_a_layer_that_needs_no_rows_gets_the_least(self):
        flat, steep = (dict.fromkeys(shares.ladder(2), 1.0),
                       {share: -share for share in shares.ladder(2)})
        self.assertEqual(shares.best_shares([flat, steep]), [1 / 16, 31 / 16])
        self.assertEqual(shares.best_shares([steep, flat]), [31 / 16, 1 / 16])


class TrialTest(unittest.TestCase):
    def test_one_layer_has_the_rows_and_all_others_a_thousand_times_as_many(self):
        for n_layers, size in itertools.product((2, 3, 8, 64), (16, 256, 2048, 65536)):
            trial = shares.Trial.of(n_layers, size)
            for layer in (0, n_layers - 1):
                self.assertAlmostEqual(sum(trial.shares(layer)), n_layers, places=9)
                self.assertGreaterEqual(min(trial.shares(layer)), 1 / 1024)
            for share in shares.ladder(n_layers):
                rows = round(share * size)
                call = trial.max_centroids(rows)
                caps = [round(own * call) for own in trial.shares(1)]
                self.assertEqual(caps.pop(1), rows)
                self.assertEqual(set(caps), {trial.other_rows(rows)})
                self.assertLessEqual(max(call, *caps), 1 << 24)
                self.assertGreaterEqual(caps[0], min(1024 * rows, 8000))


class FakeServer:
    """Serves a folder: its client loses WEIGHTS / rows bits for each token, by the rule of its
    flags."""

    def __init__(self, folder, flags):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            shares = json.load(file)["ovq"]["shares"] or [1] * len(WEIGHTS)
        self._shares = [share for entry in shares
                        for share in (entry if isinstance(entry, list) else [entry])]
        self.weights = [weight for weight in WEIGHTS
                        for _ in range(len(self._shares) // len(WEIGHTS))]
        self._is_paper = flags[flags.index("--memory") + 1] == "paper,exact"
        self.asked = []

    def model_info(self):
        return types.SimpleNamespace(layer_types=KINDS)

    def tokenize(self, text, *, add_bos):
        return START * add_bos + list(text.encode())

    def lost(self, n_tokens, max_centroids):
        caps = [max(2, round(share * max_centroids)) for share in self._shares]
        rows = [n_tokens * cap // (n_tokens + cap) if self._is_paper else min(n_tokens, cap)
                for cap in caps]
        return sum(weight * (1 / n - 1 / n_tokens) for weight, n in zip(self.weights, rows))

    def score(self, prompt, *, memory, max_centroids, top_logprobs, timeout):
        self.asked.append(prompt)
        bits = 0.5 + (0 if memory == "exact" else self.lost(len(prompt), max_centroids))
        tops = [types.SimpleNamespace(token_ids=(0,), logprobs=(0.0,))] * len(prompt)
        return types.SimpleNamespace(logprobs=[-bits * math.log(2)] * (len(prompt) - 1), top=tops)


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model, self.servers = folder.name, []
        self.raw = {"model_type": "another", "ovq": {"chunk_size": 8, "shares": [2, 2]}}
        self.write("config.json", json.dumps(self.raw))
        self.write("task.json", json.dumps({"task": TASK}))

    def write(self, name, text):
        with open(os.path.join(self.model, name), "w", encoding="utf-8") as file:
            file.write(text)

    def run_program(self, *arguments):
        """Returns the program's output."""
        @contextlib.contextmanager
        def started_server(_, folder, flags):
            self.servers.append(FakeServer(folder, flags))
            yield "fake:1"

        @contextlib.contextmanager
        def connected(*_):
            yield ServedPredictor(self.servers[-1], OSError, 1)

        output = io.StringIO()
        with mock.patch.object(shares, "connected", connected), \
                mock.patch.object(shares, "started_server", started_server), \
                contextlib.redirect_stdout(output):
            shares.main(["--model", self.model, "--server", "", "--length", "80",
                         "--centroids", "16", "--sequences", "2", *arguments])
        return output.getvalue()

    def test_what_a_layer_loses_alone_is_printed_and_the_shares_are_written(self):
        for memory in ("closest-pair", "closest-pair-all", "paper"):
            output = self.run_program("--memory", memory, "--write")
            n_tokens = len(self.servers[0].asked[0])
            for layer, weight in zip((0, 2, 3), WEIGHTS):
                found = output.split(f"\nlayer {layer}: bits that are lost with ")[1].split("\n")[0]
                for part in found.split(", "):
                    rows, bits = part.split(" rows: ")
                    rows = int(rows) if memory != "paper" else \
                        n_tokens * int(rows) // (n_tokens + int(rows))
                    self.assertAlmostEqual(float(bits), weight * (1 / rows - 1 / n_tokens),
                                           delta=1e-4 + (memory == "paper") * 0.05)
            with open(os.path.join(self.model, "config.json"), encoding="utf-8") as file:
                raw = json.load(file)
            found = raw["ovq"].pop("shares")
            self.assertEqual(sum(found), 3)
            self.assertEqual(found[1], 1 / 16)
            self.assertGreater(found[0], found[2])
            self.assertIn(f"shares {json.dumps(found)}\n", output)
            self.assertEqual(raw, {**self.raw, "ovq": {"chunk_size": 8}})

    def test_heads_are_bounded_one_by_one(self):
        output = self.run_program("--heads", "2", "--write")
        self.assertEqual(len(self.servers), 2 + 6)
        n_tokens = len(self.servers[0].asked[0])
        for (layer, weight), head in itertools.product(zip((0, 2, 3), WEIGHTS), (0, 1)):
            self.assertIn(f"\nlayer {layer}, head {head}: bits that are lost with ", output)
            self.assertIn(f", 16 rows: {weight * (1 / 16 - 1 / n_tokens):.4f}", output)
        with open(os.path.join(self.model, "config.json"), encoding="utf-8") as file:
            found = json.load(file)["ovq"]["shares"]
        self.assertEqual([len(of_heads) for of_heads in found], [2, 2, 2])
        self.assertEqual(sum(map(sum, found)), 6)
        self.assertEqual(found[1], [1 / 16, 1 / 16])
        self.assertGreater(min(found[0]), max(found[2]))

    def test_the_shares_are_tried_on_sequences_that_they_do_not_follow_from(self):
        output = self.run_program()
        first, *of_layers, last = [{tuple(prompt) for prompt in server.asked}
                                   for server in self.servers]
        self.assertEqual((len(first), len(of_layers), len(last)), (4, 3, 2))
        for measured in of_layers:
            self.assertEqual(measured, first - last)
        n_tokens = len(self.servers[0].asked[0])
        lost = [server.lost(n_tokens, 16) for server in (self.servers[0], self.servers[-1])]
        self.assertLess(lost[1], lost[0])
        self.assertIn(f"exact 0.500, with equal shares {0.5 + lost[0]:.3f}, with these "
                      f"{0.5 + lost[1]:.3f} bits per scored token", output)

    def test_a_text_is_read_in_pieces_of_its_own_tokens(self):
        text = "".join(chr(65 + i // 100) for i in range(400))
        self.write("text", text)
        self.run_program("--text", os.path.join(self.model, "text"))
        self.assertEqual({tuple(prompt) for prompt in self.servers[0].asked},
                         {(*START, *[65 + i] * 78) for i in range(4)})
        made = shares.text_sequences(ServedPredictor(self.servers[0], OSError, 1),
                                     os.path.join(self.model, "text"), 80, 4)
        self.assertEqual(made.scored.sum(), 4 * 78)
        self.assertFalse(made.scored[:, :2].any())
        with self.assertRaisesRegex(ValueError, "text: .* 4 pieces of 102 tokens, not of 103"):
            self.run_program("--text", os.path.join(self.model, "text"), "--length", "103")

    def test_what_cannot_be_measured_is_named(self):
        with self.assertRaisesRegex(ValueError, "--length: .* with 2 centroids .* hold 3071 at most"):
            self.run_program("--length", "4000", "--centroids", "2")
        with mock.patch.object(shares, "ROW_LAYERS", ("mamba2",)), \
                self.assertRaisesRegex(ValueError, "closest-pair 1 of its layers have rows"):
            self.run_program()
        os.remove(os.path.join(self.model, "task.json"))
        with self.assertRaisesRegex(ValueError, "no task.json"):
            self.run_program()


if __name__ == "__main__":
    unittest.main()
