"""Corpus, schedule, trainer, export and evaluation on a model of a few thousand weights."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch

import support
import evaluate
import export
import sample
import train
from data import BOS, EOS, HELD_OUT, Corpus, DataError, WindowSampler, context
from ovq.model import load_model
from schedule import context_length, learning_rate, parse_phases


class CorpusTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        support.write_corpus(self.root)

    def test_held_out_modules_are_whole_and_not_in_training(self):
        for excluded in ("test/a.py", "dist-packages/b.py", "_sysconfigdata_x.py"):
            path = os.path.join(self.root, excluded)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write("excluded")
        corpus = Corpus(self.root)
        text = bytes(corpus.train[corpus.train < 256].astype(np.uint8))
        self.assertNotIn(b"held_out", text)
        self.assertNotIn(b"excluded", text)
        self.assertEqual(corpus.train_bytes, len(text))
        self.assertEqual(sorted(corpus.held_out), sorted(HELD_OUT))
        self.assertEqual(corpus.train[[0, -1]].tolist(), [BOS, EOS])

    def test_a_missing_held_out_module_is_named(self):
        os.remove(os.path.join(self.root, "tarfile.py"))
        with self.assertRaisesRegex(DataError, "tarfile.py"):
            Corpus(self.root)

    def test_contexts_predict_the_next_byte_after_bos(self):
        inputs, targets = context(np.arange(10, 20, dtype=np.uint16), 3, 4)
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


class ScheduleTest(unittest.TestCase):
    def test_learning_rate_rises_then_falls(self):
        self.assertAlmostEqual(learning_rate(1.0, 0.0, 0, 10), 0.1)
        self.assertAlmostEqual(learning_rate(1.0, 0.0, 9, 10), 1.0)
        self.assertAlmostEqual(learning_rate(1.0, 1.0, 500, 10), 0.05)

    def test_phases(self):
        phases = parse_phases("512:0.75,2048:0.25")
        lengths = [context_length(phases, progress) for progress in (0.0, 0.74, 0.76, 1.0)]
        self.assertEqual(lengths, [512, 512, 2048, 2048])
        for text in ("512", "512:0.5", "0:1", "512:x", "512:0.5,:0.5"):
            with self.assertRaisesRegex(ValueError, "--phases"):
                parse_phases(text)


class TrainingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.root = os.path.join(self.folder, "library")
        support.write_corpus(self.root)
        self.config = os.path.join(self.folder, "config.json")
        with open(self.config, "w", encoding="utf-8") as file:
            json.dump(support.tiny_config(), file)
        sample_size = mock.patch.multiple(train, _SAMPLE_LENGTH=64, _SAMPLE_CONTEXTS=2)
        sample_size.start()
        self.addCleanup(sample_size.stop)

    def call(self, module, *arguments):
        """Runs a module's main() as the command line would; returns what it printed."""
        output = io.StringIO()
        with mock.patch.object(sys, "argv", [module.__name__, *arguments]), \
                contextlib.redirect_stdout(output):
            module.main()
        return output.getvalue()

    def train(self, run, *more):
        return self.call(train, "--config", self.config, "--run", os.path.join(self.folder, run),
                         "--data-root", self.root, "--steps", "6", "--batch-tokens", "64",
                         "--phases", "16:0.5,32:0.5", "--log-steps", "2", "--eval-steps", "4",
                         "--compute-dtype", "float32", *more)

    def checkpoint(self, run):
        return os.path.join(self.folder, run, train.CHECKPOINT)

    def test_a_resumed_run_equals_an_unbroken_one(self):
        self.train("whole")
        train_step, calls = train.Trainer.train_step, []

        def stop_after_three(trainer):
            if len(calls) == 3:
                trainer.save()
                raise KeyboardInterrupt
            calls.append(1)
            return train_step(trainer)

        with mock.patch.object(train.Trainer, "train_step", stop_after_three), \
                self.assertRaises(KeyboardInterrupt):
            self.train("broken")
        with self.assertRaisesRegex(ValueError, "--resume"):
            self.train("broken")
        self.train("broken", "--resume")
        whole, broken = (torch.load(self.checkpoint(run)) for run in ("whole", "broken"))
        self.assertEqual(whole["tokens"], broken["tokens"])
        for name, tensor in whole["model"].items():
            self.assertTrue(torch.equal(tensor, broken["model"][name]), name)

    def test_export_evaluate_and_sample(self):
        self.assertIn("held-out", self.train("run"))
        for name in ("curve.csv", "curve.png"):
            self.assertTrue(os.path.getsize(os.path.join(self.folder, "run", name)))
        model, out = (os.path.join(self.folder, name) for name in ("model", "evaluation"))
        arguments = ("--checkpoint", self.checkpoint("run"), "--out", model)
        self.call(export, *arguments)
        with self.assertRaisesRegex(ValueError, "config.json exists"):
            self.call(export, *arguments)
        self.call(export, *arguments, "--overwrite")
        self.assertEqual(load_model(model).config.torch_dtype, "bfloat16")
        self.call(evaluate, "--model", model, "--out", out, "--data-root", self.root,
                  "--lengths", "16,32,64", "--scales", "1,2")
        with open(os.path.join(out, "evaluation.csv"), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 7)
        with open(os.path.join(out, "evaluation.md"), encoding="utf-8") as file:
            self.assertIn("| 32 |", file.read())
        greedy = self.call(sample, "--model", model, "--prompt", "def ", "--tokens", "5")
        self.assertTrue(greedy.startswith("def "))

    def test_every_command_has_help_and_names_what_is_wrong(self):
        for name in ("data", "train", "export", "evaluate", "sample"):
            script = os.path.join(support.TRAINING, f"{name}.py")
            shown = subprocess.run([sys.executable, script, "--help"], capture_output=True,
                                   text=True, check=True)
            self.assertIn("usage:", shown.stdout)
        failed = subprocess.run(
            [sys.executable, os.path.join(support.TRAINING, "sample.py"), "--model",
             os.path.join(self.folder, "nowhere"), "--prompt", "x"], capture_output=True, text=True,
            check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("nowhere", failed.stderr)


if __name__ == "__main__":
    unittest.main()
