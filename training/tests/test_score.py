"""Scores, their statistics and their report, with a server whose answers are known."""

import argparse
import contextlib
import csv
import io
import json
import math
import os
import re
import tempfile
import threading
import types
import unittest
from unittest import mock

import numpy as np
import torch

import support
import paired
import score
import scoring
from data import BOS
from export import export
from ovq.config import ConfigError, config_from_dict, config_to_dict
from ovq.memories import MEMORIES
from ovq.model import OvqModel
from predictors import PredictionError, ReferencePredictor, ServedPredictor, server_flags
from tasks import make_task

TASK = {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 20, "n_queries": 2}


class FakeError(Exception):
    """A call failed."""


class FakeClient:
    """Predicts every token right from `enough` centroids on, else its successor; half a bit each.

    With a barrier, calls wait for one another: `together` is how many must be in flight."""

    def __init__(self, layer_types=("sliding_attention", "ovq_attention"), enough=0, together=1):
        self.calls, self._enough, self._layer_types = [], enough, layer_types
        self._barrier = threading.Barrier(together)

    def score(self, prompt, *, memory, max_centroids, top_logprobs, timeout):
        self.calls.append((len(prompt), max_centroids, top_logprobs, timeout))
        self._barrier.wait(10)
        if max_centroids == 13:
            raise FakeError("RESOURCE_EXHAUSTED: no room")
        wrong = max_centroids is not None and max_centroids < self._enough
        tops = [types.SimpleNamespace(token_ids=(token + wrong,), logprobs=(-0.25,))
                for token in [*prompt[1:], 0]]
        logprobs = tuple(-0.5 * math.log(2) for _ in prompt[1:])
        return types.SimpleNamespace(token_ids=tuple(prompt), logprobs=logprobs, top=tops)

    def model_info(self, positions=(), *, max_centroids=None):
        sizes = [types.SimpleNamespace(position=n, state_bytes=100 + (max_centroids or n),
                                       full_kv_cache_bytes=10 * n) for n in positions]
        return types.SimpleNamespace(name="fake", layer_types=self._layer_types,
                                     state_sizes=sizes)


class ArithmeticTest(unittest.TestCase):
    def test_a_ratio_leaves_at_most_that_many_live_centroids(self):
        laws = (scoring.RowLaw(), scoring.RowLaw(shares=(1.75, 0.25)),
                scoring.RowLaw(fills=True, shares=(0.5, 1.5)),
                scoring.RowLaw(fills=True, shares=(1.25, (1.0, 0.5))),
                scoring.RowLaw(blind_growth=True))
        for law in laws:
            for ratio, share in (("0.3x", 0.3), ("0.05x", 0.05), ("0.9x", 0.9), ("1/3x", 1 / 3)):
                for n_tokens in (60, 127, 512, 4099, 65536):
                    size = law.max_centroids(ratio, n_tokens)
                    self.assertLessEqual(law.live(n_tokens, size), share * n_tokens)
                    self.assertGreater(law.live(n_tokens, size + 1), share * n_tokens)
        law = scoring.RowLaw(fills=True)
        self.assertEqual([law.live(100, size) for size in (30, 300)], [30, 100])
        # layers of 18 and 6, after 100 tokens: 15 and 5 rows by eq. 17
        self.assertEqual(scoring.RowLaw(shares=(1.5, 0.5)).live(100, 12), 10)
        law = scoring.RowLaw(fills=True, shares=(1.5, (0.75, 0.25)))
        self.assertEqual(law.live(100, 12), (18 + (9 + 3) // 2) // 2)
        law = scoring.RowLaw(blind_growth=True)  # all after 16,384 tokens
        self.assertEqual([law.live(n, 512) for n in (20, 64, 8192, 16384, 65536)], [1, 2, 256, 512, 512])
        self.assertEqual(scoring.RowLaw().max_centroids("512", 100), 512)
        with self.assertRaisesRegex(ValueError, "--centroids: 0.99x of 50 tokens"):
            scoring.RowLaw().max_centroids("0.99x", 50)

    def test_bad_centroids_are_named(self):
        for text in ("0", "1", "x", "1x", "0x", "-0.3x", "1/0x", "many"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, text):
                score.centroid_spec(text)

    def test_error_is_that_of_the_sequences_means(self):
        right, counts = np.array([3, 8, 5, 8]), np.array([8, 8, 8, 8])
        mean, error = scoring.mean_and_error(right, counts)
        self.assertAlmostEqual(mean, 24 / 32)
        self.assertAlmostEqual(error, (right / 8).std(ddof=1) / 2)
        self.assertEqual(scoring.mean_and_error(right[:1], counts[:1]), (3 / 8, None))

    def test_one_sequence_is_shown_without_an_error(self):
        self.assertEqual(scoring.mean_text([90, 94], 1, "%"), "92.0 +- 2.0%")
        self.assertEqual(scoring.mean_text([1.25], 3), "1.250")

    def test_error_of_sequences_with_unequal_counts(self):
        mean, error = scoring.mean_and_error(np.array([1, 6]), np.array([2, 6]))
        self.assertAlmostEqual(mean, 7 / 8)
        # residuals 1 - 2 * 7/8 and 6 - 6 * 7/8
        self.assertAlmostEqual(error, math.sqrt(2 * 0.75 ** 2 * 2) / 8)

    def test_means_of_all_scored_tokens_and_of_each_group(self):
        right = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], bool)
        scored = np.array([[1, 0, 1, 1], [1, 1, 1, 0]], bool)
        seen = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
        rows = scoring.grouped_means(right, scored, seen)
        self.assertEqual([row[:2] for row in rows], [(None, 6), (0, 3), (1, 3)])
        np.testing.assert_allclose([row[2] for row in rows], [4 / 6, 2 / 3, 2 / 3])
        self.assertEqual(len(scoring.grouped_means(right, scored, np.zeros((2, 4)))), 1)

    def test_mixer_is_the_one_that_reads_the_whole_context(self):
        for kinds, name in ((("sliding_attention", "vq_attention"), "vq"),
                            (("full_attention", "ovq_attention"), "ovq"),
                            (("sliding_attention", "kvm_attention"), "kvm"),
                            (("sliding_attention",), "sliding")):
            self.assertEqual(scoring.mixer_of(kinds), name)

    def test_limits_of_a_server_fit_the_plan(self):
        exam = scoring.TaskExam(TASK, 0)
        plan = scoring.make_plan(exam, [600, 300], ["64", "100000"], None)
        longest = exam.sequences(600, 1).tokens.shape[1]
        self.assertEqual(server_flags(plan, "--threads 1 --device cpu"),
                         ["--max-prompt-tokens", str(longest), "--max-context", str(longest),
                          "--max-centroids", "100000", "--threads", "1", "--device", "cpu"])
        self.assertEqual([job.length for job in plan], [300, 300, 600, 600])
        self.assertEqual(plan[0].n_sequences, 96)  # 4 scored tokens each

    def test_every_number_of_examples_seen_gets_enough_tokens(self):
        exam = scoring.TaskExam({"name": "linear_icl", "vector_tokens": 2, "x_max": 9,
                                 "n_functions": 1, "n_identifiers": 1}, 0)
        # 60 tokens: 10 examples of one function, 2 scored tokens in each
        plan = scoring.make_plan(exam, [60], ["64"], None)
        self.assertEqual(plan[0].n_sequences, 384 // 2)


class ExamTest(unittest.TestCase):
    def test_sequences_are_the_same_for_all_models_but_not_training_s(self):
        exam = scoring.TaskExam(TASK, 0)
        made = exam.sequences(200, 3)
        again = scoring.TaskExam(TASK, 0).sequences(200, 3)
        np.testing.assert_array_equal(made.tokens, again.tokens)
        for other in (scoring.TaskExam(TASK, 1).sequences(200, 3).tokens,
                      *(make_task(TASK).sequences(200, 3, np.random.default_rng(seed)).tokens
                        for seed in (0, (0, 0), (0, 200), 1 << 64))):
            self.assertFalse((made.tokens == other).all(axis=1).any())

    def test_documents_are_held_out_and_tell_positions(self):
        with tempfile.TemporaryDirectory() as root:
            support.write_corpus(root)
            made = scoring.DocumentExam("python_documents", root).sequences(300, 40)
            text = bytes(made.tokens[made.tokens < BOS].astype(np.uint8))
            files = scoring.DocumentExam("python_files", root).sequences(300, 40)
            files = bytes(files.tokens[files.tokens < BOS].astype(np.uint8))
        self.assertEqual(made.tokens.shape, (40, 300))
        self.assertTrue((made.tokens[:, 0] == BOS).all())
        self.assertFalse(made.scored[:, 0].any())
        row = made.seen[0]
        self.assertEqual([row[1], row[128], row[129], row[256], row[257], row[298]],
                         [128, 128, 256, 256, 512, 512])
        self.assertNotIn(b"def f_", text)
        # a model of python_files was trained on these two
        for name in (b"'json'", b"'unittest'"):
            self.assertIn(name, text)
            self.assertNotIn(name, files)

    def test_texts_count_by_their_bytes(self):
        lengths = np.array([0, 2, 1, 3])
        texts = [np.array([0, 1, 2, 3, 1]), np.array([0, 3, 3, 2])]
        exam = scoring.TextExam(texts, lengths)
        made = exam.sequences(4, 2)
        np.testing.assert_array_equal(made.tokens, [[0, 1, 2, 3], [0, 3, 3, 2]])
        np.testing.assert_array_equal(exam.weights(made), [[0, 2, 1, 3], [0, 3, 3, 1]])
        job = scoring.Job(4, 4, 2, None, None)
        bits = [types.SimpleNamespace(logprobs=-math.log(2) * np.array(row)) for row in ([4, 1, 1], [1, 2, 6])]
        rows, each = scoring.score_job(exam, job, made, bits, 1)
        self.assertEqual([(row["position"], row["scored"], row["bits_per_byte"]) for row in rows],
                         [(None, 13, f"{15 / 13:.6f}"), (128, 13, f"{15 / 13:.6f}")])
        self.assertEqual([(row["sequence"], row["scored"], row["sum"]) for row in each if row["position"] is None],
                         [(0, 6, "6.000000"), (1, 7, "9.000000")])
        for length, count, message in ((4, 3, "2 texts for 3 sequences"), (5, 2, "a text has 4 tokens, and 5 ")):
            with self.assertRaisesRegex(ValueError, message):
                exam.sequences(length, count)

    def test_bits_of_a_prediction(self):
        with tempfile.TemporaryDirectory() as root:
            support.write_corpus(root)
            exam = scoring.DocumentExam("python_files", root)
        made = exam.sequences(50, 2)
        halves = [types.SimpleNamespace(logprobs=np.full(49, np.log(0.5), np.float32))] * 2
        np.testing.assert_allclose(exam.values(made, halves), np.ones((2, 49)), rtol=1e-6)


class ScoreTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.model = os.path.join(self.folder, "model")
        self.csv = os.path.join(self.folder, "new", "scores.csv")
        self.write_model()

    def write_model(self, task=TASK, **changes):
        torch.manual_seed(1)
        raw = support.tiny_config(**changes)
        config = config_from_dict(raw)
        checkpoint = os.path.join(self.folder, "checkpoint.pt")
        saved = {"config": config_to_dict(config), "model": OvqModel(config).state_dict()}
        torch.save({**saved, "task": task} if task else saved, checkpoint)
        export(checkpoint, self.model, "float32", overwrite=True)

    def score(self, *arguments, client=None, source=("--address", "fake:1")):
        """Returns (exit status, rows of the CSV, printed text)."""
        @contextlib.contextmanager
        def connected(_, timeout):
            yield ServedPredictor(client, FakeError, timeout)

        output = io.StringIO()
        source = source if client else ("--backend", "reference")
        with mock.patch.object(score, "connected", connected), \
                contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = score.main(["--model", self.model, "--out", self.csv, *source, *arguments])
        with open(self.csv, encoding="utf-8", newline="") as file:
            return status, list(csv.DictReader(file)), output.getvalue()

    def test_a_row_for_every_length_and_size(self):
        client = FakeClient(enough=30)
        status, rows, output = self.score("--lengths", "128,64", "--centroids", "16,0.4x",
                                          "--sequences", "5", "--timeout", "7", client=client)
        self.assertEqual(status, 0)
        # 6 tokens for each pair, two queries and one token between: 10 * 6 + 1 and 21 * 6 + 1
        self.assertEqual([(row["length"], row["tokens"], row["centroids"], row["max_centroids"],
                           row["live_centroids"], float(row["accuracy"])) for row in rows],
                         [("64", "61", "16", "16", "12", 0), ("64", "61", "0.4x", "42", "24", 1),
                          ("128", "127", "16", "16", "14", 0),
                          ("128", "127", "0.4x", "85", "50", 1)])
        for row in rows:
            self.assertEqual((row["model"], row["mixer"], row["backend"], row["task"]),
                             ("fake", "ovq", "server", "basic_icr"))
            self.assertEqual((row["sequences"], row["scored"], float(row["error"])), ("5", "20", 0))
            self.assertEqual(int(row["state_bytes"]), 100 + int(row["max_centroids"]))
            self.assertEqual(int(row["full_kv_cache_bytes"]), 10 * int(row["tokens"]))
        self.assertEqual(sorted(set(client.calls)),
                         [(61, 16, 1, 7.0), (61, 42, 1, 7.0), (127, 16, 1, 7.0), (127, 85, 1, 7.0)])
        self.assertEqual(len(client.calls), 20)
        self.assertIn("100% done", output)

    def test_a_model_of_closest_pairs_is_called_so_and_may_be_read_by_the_paper_s_rule(self):
        kinds = ("sliding_attention", "closest_pair_attention")
        arguments = ("--lengths", "64", "--centroids", "16,0.4x", "--sequences", "4")
        _, rows, _ = self.score(*arguments, client=FakeClient(layer_types=kinds))
        self.assertEqual([(row["mixer"], row["max_centroids"], row["live_centroids"]) for row in rows],
                         [("closest-pair", "16", "16"), ("closest-pair", "24", "24")])
        self.write_model(TASK, ovq={"chunk_size": 8, "update": "closest-pair"})
        for memory, sizes in (((), ("16", "24")), (("--memory", "window"), ("16", "42"))):
            _, rows, _ = self.score(*arguments, *memory)
            self.assertEqual([(row["mixer"], row["max_centroids"]) for row in rows],
                             [("closest-pair", size) for size in sizes])

    def test_dictionaries_that_grow_at_once_have_as_many_slots_as_tokens(self):
        arguments = ("--lengths", "64", "--centroids", "16,0.4x", "--sequences", "4")
        for rules, memory, sizes in (({}, (), (("16", "12"), ("42", "24"))), ({"min_state_size": True}, (), (("16", "16"), ("24", "24"))),
                                     ({"min_state_size": True}, ("--memory", "dictionary"), (("16", "16"), ("24", "24"))),
                                     ({"min_state_size": True}, ("--memory", "window"), (("16", "12"), ("42", "24")))):
            with self.subTest(rules=rules, memory=memory):
                self.write_model(TASK, ovq={"chunk_size": 8, **rules})
                _, rows, _ = self.score(*arguments, *memory)
                self.assertEqual(tuple((row["max_centroids"], row["live_centroids"]) for row in rows), sizes)

    def test_models_without_dictionaries_are_scored_once_a_length(self):
        client = FakeClient(layer_types=("sliding_attention", "full_attention"))
        _, rows, _ = self.score("--lengths", "64", "--sequences", "4", client=client)
        self.assertEqual([(row["mixer"], row["centroids"], row["live_centroids"]) for row in rows],
                         [("full", "", "")])
        self.assertEqual({call[1] for call in client.calls}, {None})

    def test_a_table_that_grows_by_its_own_law_is_named_after_its_n(self):
        kinds = ("sliding_attention", "kvm_attention")
        for law, name in (({"state_budget_mode": "kvm_saturation", "state_saturation_n": 24}, "24"),
                          ({}, "")):
            self.write_model(layer_types=list(kinds), kvm={"chunk_len": 8, **law})
            client = FakeClient(layer_types=kinds)
            for source in (client, None):
                _, rows, _ = self.score("--lengths", "64", "--sequences", "4", client=source)
                self.assertEqual([(row["mixer"], row["centroids"], row["max_centroids"])
                                  for row in rows], [("kvm", name, "")])
            self.assertEqual({call[1] for call in client.calls}, {None})

    def test_calls_are_in_flight_together(self):
        # the barrier breaks, and fails the calls, if fewer than three wait at once
        _, rows, _ = self.score("--lengths", "64", "--centroids", "16", "--sequences", "6",
                                "--concurrency", "3", client=FakeClient(together=3))
        self.assertEqual(rows[0]["accuracy"], "1.000000")

    def test_a_failed_call_is_named(self):
        with self.assertRaisesRegex(PredictionError,
                                    "length 64, 13 centroids: RESOURCE_EXHAUSTED: no room"):
            self.score("--lengths", "64", "--centroids", "16,13", client=FakeClient())
        self.assertFalse(os.path.exists(self.csv))

    def test_rows_by_examples_seen(self):
        self.write_model({"name": "linear_icl", "vector_tokens": 2, "x_max": 9, "n_functions": 2,
                          "n_identifiers": 4})
        _, rows, _ = self.score("--lengths", "60", "--centroids", "16", "--task",
                                '{"n_functions": 1}', "--sequences", "4", client=FakeClient())
        self.assertEqual({row["task"] for row in rows}, {"linear_icl n_functions=1"})
        # 10 examples of 6 tokens of one function, 2 scored in each
        self.assertEqual([(row["seen"], row["scored"]) for row in rows],
                         [("", "80"), *((str(n), "8") for n in range(10))])

    def test_byte_models_are_scored_on_documents(self):
        self.write_model(task=None)
        self.assertFalse(os.path.exists(os.path.join(self.model, "task.json")))
        support.write_corpus(os.path.join(self.folder, "library"))
        _, rows, _ = self.score("--lengths", "300", "--centroids", "16", "--sequences", "4",
                                "--data-root", os.path.join(self.folder, "library"),
                                client=FakeClient())
        self.assertEqual([row["position"] for row in rows], ["", "128", "256", "512"])
        for row in rows:
            self.assertEqual((row["task"], row["accuracy"]), ("python_files", ""))
            self.assertAlmostEqual(float(row["bits_per_byte"]), 0.5, places=5)

    def test_models_with_a_tokenizer_are_scored_on_texts(self):
        self.write_model(task=None)
        tokenizer = {"added_tokens": [{"id": 0}],
                     "model": {"vocab": {"<s>": 0, "ab": 1, "a": 2, "b": 3, "\u00c3": 4, "\u00a4": 5}}}
        with open(os.path.join(self.model, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump(tokenizer, file)
        paths = [os.path.join(self.folder, name) for name in ("one.txt", "two.txt")]
        for path, text in zip(paths, ("abaabb\u00e4" * 4, "bab" * 20)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        pieces = {"ab": [1], "a": [2], "b": [3], "\u00e4": [4, 5]}
        client = FakeClient()
        client.tokenize = lambda text, add_bos: [0] + [
            token for piece in re.findall("ab|.", text) for token in pieces[piece]]
        with mock.patch.object(score, "started_server", lambda *_: contextlib.nullcontext("fake:1")):
            arguments = ("--lengths", "21", "--centroids", "16", "--server", "fake")
            _, (whole, part), _ = self.score("--text", *paths, *arguments, client=client, source=())
            self.assertEqual([whole[name] for name in ("task", "sequences", "scored", "position")],
                             ["text", "2", "57", ""])
            # 20 tokens of half a bit in each; 27 and 30 bytes
            self.assertAlmostEqual(float(whole["bits_per_byte"]), 20 / 57, places=5)
            self.assertEqual((part["position"], part["scored"]), ("128", "57"))
            with self.assertRaisesRegex(ValueError, "2 texts for 3 sequences"):
                self.score("--text", *paths, "--sequences", "3", *arguments, client=client, source=())
            tokenizer["model"]["vocab"]["ab"] = 6
            tokenizer["model"]["vocab"]["\u0120ab"] = 1
            with open(os.path.join(self.model, "tokenizer.json"), "w", encoding="utf-8") as file:
                json.dump(tokenizer, file)
            with self.assertRaisesRegex(ValueError, "tokenizer.json is not byte-level, or changes .*one.txt"):
                self.score("--text", *paths, *arguments, client=client, source=())

    def test_single_sequences_add_up_to_the_rows_and_are_compared(self):
        self.write_model(task=None)
        support.write_corpus(os.path.join(self.folder, "library"))
        each = os.path.join(self.folder, "each.csv")
        _, rows, _ = self.score("--lengths", "300", "--centroids", "16,32", "--sequences", "4", "--each", each,
                                "--data-root", os.path.join(self.folder, "library"))
        for row in rows:
            singles = paired.read_each(each, row["centroids"])[300, row["position"]]
            self.assertEqual(sum(count for count, _ in singles.values()), int(row["scored"]))
            self.assertAlmostEqual(sum(total for _, total in singles.values()) / int(row["scored"]),
                                   float(row["bits_per_byte"]), places=5)
        first, second = (paired.read_each(each, size) for size in ("16", "32"))
        whole = next(paired.compare(first, second))
        bits = {row["centroids"]: float(row["bits_per_byte"]) for row in rows if not row["position"]}
        self.assertEqual(whole[:3], (300, "", 4))
        self.assertAlmostEqual(whole[5], bits["16"] - bits["32"], places=5)
        self.assertEqual([line[5:] for line in paired.compare(first, first)], [(0, 0)] * 4)

    def test_a_file_of_single_sequences_may_have_a_colon_in_its_name(self):
        path = os.path.join(self.folder, "12:30.csv")
        rows = [dict(zip(scoring.EACH_COLUMNS, (8, size, "", "", 0, 2, total))) for size, total in (("16", 1.0), ("0.3x", 2.0))]
        score.write_csv(path, rows, scoring.EACH_COLUMNS)
        self.assertEqual([paired.read_named(f"{path}:{size}") for size in ("16", "0.3x")],
                         [{(8, ""): {0: (2, total)}} for total in (1.0, 2.0)])
        with self.assertRaisesRegex(ValueError, "12:30.csv: has centroids 0.3x, 16: expected one .*, got none"):
            paired.read_named(path)
        with open(path, encoding="utf-8") as file:
            whole = file.read()
        for row, wrong in (("8,16,,,1,2\n", "expected 7 columns"), ("8", "expected 7 columns"),
                           ("8,16,,,1,2,3.0,4\n", "expected 7 columns"), ("8,16,,,x,2,3.0\n", "invalid literal")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(whole + row)
            with self.assertRaisesRegex(ValueError, f"12:30.csv: row 3 is not of score.py --each: {wrong}"):
                paired.read_named(f"{path}:16")

    def test_a_difference_is_of_the_same_sequences(self):
        first = {(8, ""): {0: (2, 3.0), 1: (2, 7.0)}}
        # The scores differ by 4 between sequences, the pairs by 0.5 and 1 in each token.
        line = next(paired.compare(first, {(8, ""): {0: (2, 2.0), 1: (2, 5.0)}}))
        self.assertEqual(line[:6], (8, "", 2, 2.5, 1.75, 0.75))
        self.assertAlmostEqual(line[6], 0.25)
        for other, message in (({(8, ""): {0: (2, 2.0)}}, "length 8: not the same sequences"),
                               ({(8, ""): {0: (2, 2.0), 1: (3, 5.0)}}, "length 8: not the same sequences"),
                               ({(9, ""): {0: (2, 2.0)}}, "no length in common")):
            with self.assertRaisesRegex(ValueError, message):
                list(paired.compare(first, other))

    def test_differences_of_all_tokens_stand_before_those_of_the_groups(self):
        keys = [(length, group) for length in range(1, 30) for group in ("", "0", "2", "10")]
        scores = {key: {0: (2, 1.0)} for key in reversed(keys)}
        self.assertEqual([line[:2] for line in paired.compare(scores, scores)], keys)

    def test_the_reference_computes_the_same_rows(self):
        arguments = ("--lengths", "64", "--centroids", "16,32", "--sequences", "4")
        _, served, _ = self.score(*arguments, client=FakeClient())
        _, rows, _ = self.score(*arguments)
        columns = ("length", "tokens", "centroids", "max_centroids", "sequences", "scored")
        self.assertEqual([[row[name] for name in columns] for row in rows],
                         [[row[name] for name in columns] for row in served])
        self.assertEqual({(row["backend"], row["state_bytes"]) for row in rows},
                         {("reference", "")})
        tokens = scoring.TaskExam(TASK, 0).sequences(64, 1).tokens[0]
        plain, grown = (ReferencePredictor(self.model, ablation).predict(tokens, 16)
                        for ablation in ("none", "linear_growth"))
        self.assertGreater(np.abs(plain.logprobs - grown.logprobs).max(), 1e-5)

    def test_a_memory_bounds_full_attention_too(self):
        self.write_model(TASK, layer_types=["sliding_attention", "full_attention"])
        arguments = ("--lengths", "64", "--sequences", "4")
        _, exact, _ = self.score(*arguments)
        self.assertEqual([row["centroids"] for row in exact], [""])
        for memory in (*MEMORIES, "dictionary"):
            _, rows, _ = self.score(*arguments, "--centroids", "16,0.5x", "--memory", memory)
            self.assertEqual([(row["mixer"], row["ablation"], row["centroids"]) for row in rows],
                             [("full", memory, "16"), ("full", memory, "0.5x")])
        with self.assertRaisesRegex(ValueError, "memory: 'windows' is not one of window, sinks, keydiff"):
            self.score(*arguments, "--memory", "windows")

    def test_fields_of_the_config_may_be_others(self):
        self.write_model(TASK)
        arguments = ("--lengths", "64", "--centroids", "16", "--sequences", "2")
        rows = {}
        for config in ('{"ovq": {"update": "closest-pair"}}', '{"rms_norm_eps": 0.5}', '{"ovq": {}}'):
            _, (rows[config],), _ = self.score(*arguments, "--config", config)
        self.assertEqual([row["ablation"] for row in rows.values()],
                         ['ovq.update="closest-pair"', "rms_norm_eps=0.5", "none"])
        _, (row,), _ = self.score(*arguments, "--config", '{"ovq": {}}', "--ablation", "linear_growth")
        self.assertEqual(row["ablation"], "linear_growth")
        self.assertEqual({row["model"] for row in rows.values()}, {os.path.basename(self.model)})
        with self.assertRaisesRegex(ConfigError, "config.json: ovq.updat: unknown field"):
            self.score(*arguments, "--config", '{"ovq": {"updat": "paper"}}')
        with self.assertRaisesRegex(ValueError, "--config: with a --model"):
            self.score(*arguments, "--config", '{"rms_norm_eps": 0.5}', client=FakeClient())

    def test_reference_that_disagrees_fails(self):
        reference = ReferencePredictor(self.model)
        arguments = ("--lengths", "64", "--centroids", "16", "--check-reference", "3")

        class Agreeing(FakeClient):
            shift = 0

            def score(self, prompt, *, memory, max_centroids, top_logprobs, timeout):
                answer = super().score(prompt, memory=memory, max_centroids=max_centroids,
                                       top_logprobs=top_logprobs, timeout=timeout)
                own = reference.predict(np.array(prompt), max_centroids)
                for top, token, logprob in zip(answer.top, own.top_ids, own.top_logprobs):
                    top.token_ids, top.logprobs = (token + self.shift,), (logprob - 0.125,)
                return answer

        status, rows, _ = self.score(*arguments, client=Agreeing())
        self.assertEqual((status, rows[0]["checked"], rows[0]["agreement"]), (0, "12", "1.000000"))
        self.assertAlmostEqual(float(rows[0]["logprob_difference"]), 0.125, places=5)
        client = Agreeing()
        client.shift = 1
        status, rows, output = self.score(*arguments, client=client)
        self.assertEqual((status, rows[0]["agreement"]), (1, "0.000000"))
        self.assertIn("agrees on 0 of 12", output)

    def test_what_would_fail_in_the_end_fails_before_anything_is_scored(self):
        support.write_corpus(os.path.join(self.folder, "library"))
        documents = ("--task", '{"name": "python_files"}', "--data-root", os.path.join(self.folder, "library"))
        with mock.patch.object(score, "Scorer", side_effect=AssertionError):
            for arguments, message in ((("--each", self.folder), "Is a directory"),
                                       (("--each", os.path.join(self.model, "config.json", "each.csv")), "config.json"),
                                       ((*documents, "--lengths", "1"), "nothing is scored in sequences of 1 tokens"),
                                       (("--task", '{"n_symbols": 300}'), "vocab_size: 258, but .* needs 303")):
                with self.subTest(arguments=arguments), self.assertRaisesRegex((OSError, ValueError), message):
                    self.score("--lengths", "64", "--centroids", "16", *arguments)

    def test_bad_arguments_are_named(self):
        self.write_model({"name": "basic_icr", "n_symbol": 3})
        with self.assertRaisesRegex(ValueError, "n_symbol"):
            self.score("--lengths", "64")
        for arguments, name in ((("--ablation", "linear_growth"), "--ablation"),
                                (("--memory", "window"), "--memory: with a server paper or closest"),
                                (("--memory", "closest-pair"), "--memory: .* with --server"),
                                (("--check-server-args", ""), "--check-server-args: with --server"),
                                (("--text", "a.txt"), "--text: with --server and --model"),
                                (("--check-reference", "-1"), "--check-reference: -1 is negative"),
                                (("--each", self.csv), "--each: is --out"),
                                (("--model", ""), "--model")):
            with self.assertRaisesRegex(ValueError, name):
                self.score(*arguments, client=FakeClient())


if __name__ == "__main__":
    unittest.main()
