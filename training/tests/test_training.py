"""Schedule, sources, trainer, export and evaluation with a model of a few thousand weights.

They are one file because most tests run train.py and look at what the next program makes of it."""

import contextlib
import io
import json
import math
import os
import signal
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
from data import BOS, DataError, Documents
from ovq.config import ConfigError, config_from_dict, config_to_dict
from ovq.mixers import unit_norm
from ovq.model import OvqModel, load_model, save_model
from predictors import ReferencePredictor
from schedule import Phase, learning_rate, parse_phases, phase_at
from sources import NO_TARGET, CorpusSource, TaskSource, predicted_right
from tasks import TaskError, make_task


_BELOW = "neither positive nor 0"
TOKENIZER = os.path.join(os.path.dirname(support.TRAINING), "models", "scripted-chat", "tokenizer.json")


class ScheduleTest(unittest.TestCase):
    def test_learning_rate_rises_then_falls(self):
        self.assertAlmostEqual(learning_rate(1.0, 0.0, 0, 10), 0.1)
        self.assertAlmostEqual(learning_rate(1.0, 0.0, 9, 10), 1.0)
        self.assertAlmostEqual(learning_rate(1.0, 1.0, 500, 10), 0.05)
        self.assertAlmostEqual(learning_rate(1.0, 0.0, 0, 0), 1.0)

    def test_phases(self):
        phases = parse_phases("512:0.75,2048:0.25:64")
        self.assertEqual([phase_at(phases, progress) for progress in (0.0, 0.74, 0.76, 1.0)],
                         2 * [Phase(512, 0.75)] + 2 * [Phase(2048, 1.0, 64)])
        for text in ("512", "512:0.5", "0:1", "512:x", "512:0.5,:0.5", "512:1:0", "512:1:2:3",
                     "512:1:x", "512-512:1", "0-512:1", "x-512:1", "1-2-3:1"):
            with self.assertRaisesRegex(ValueError, "--phases"):
                parse_phases(text)


    def test_a_phase_of_mixed_lengths_draws_one_for_every_step(self):
        phase, = parse_phases("500-1100:1:64")
        self.assertEqual(phase, Phase(1100, 1.0, 64, 500))
        drawn = [phase.length_at(0, step) for step in range(300)]
        lengths = {588, 844, 1100}
        self.assertEqual(set(drawn), lengths)
        self.assertGreater(min(map(drawn.count, lengths)), 60)  # of 100, with a deviation of 8
        self.assertEqual(drawn, [phase.length_at(0, step) for step in range(300)])
        self.assertNotEqual(drawn, [phase.length_at(1, step) for step in range(300)])
        self.assertEqual({Phase(5, 1.0).length_at(0, step) for step in range(9)}, {5})


RECALL = {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 16, "n_queries": 1}


class SuccessorModel(torch.nn.Module):
    """Predicts token + 1 everywhere, and records the requested dictionary sizes."""

    def __init__(self):
        super().__init__()
        self.weight, self.asked = torch.nn.Parameter(torch.zeros(1)), []

    def forward(self, tokens, max_centroids=None):
        self.asked.append(max_centroids)
        return torch.nn.functional.one_hot(tokens + 1, 100).float() + self.weight


class TaskSourceTest(unittest.TestCase):
    def test_predicted_right_looks_at_scored_tokens_only(self):
        model = SuccessorModel()
        tokens = np.array([[7, 8, 9, 20, 21], [3, 5, 6, 9, 9]])
        scored = np.array([[0, 1, 0, 1, 1], [1, 1, 1, 0, 0]], bool)
        # nothing precedes the first token: it is never predicted, whether scored or not
        self.assertEqual(predicted_right(model, tokens, scored, 5).tolist(),
                         [True, False, True, False, True])
        self.assertEqual(model.asked, [5])

    def test_batches_weigh_what_is_scored(self):
        task = make_task(RECALL)
        source = TaskSource(task, 31, 0, unscored_weight=0.25)
        inputs, targets, weights = source.next(31, 3, 0)
        np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
        # ... ? K K -> V V |
        expected = np.full(30, 0.25)
        expected[[-3, -2]] = 1
        np.testing.assert_array_equal(weights, np.tile(expected, (3, 1)))
        asking = TaskSource(task, 31, 0, 0.4, None, 0.25).next(31, 1, 0)[2]
        self.assertEqual(int((asking == 1).sum()), 4)  # 12 of 31 tokens are queries: two pairs

    def test_batches_of_a_length_have_one_shape(self):
        whole, filled = (TaskSource(make_task(RECALL), 31, 0).next(length, 3, 0)
                         for length in (31, 33))
        for one, other, fill in zip(whole, filled, (0, NO_TARGET, 0)):
            self.assertEqual(other.shape, (3, 32))
            np.testing.assert_array_equal(other[:, :30], one)
            np.testing.assert_array_equal(other[:, 30:], fill)

    def test_numbers_widen_with_the_runs_progress(self):
        task = make_task({"name": "linear_icl", "vector_tokens": 2, "x_max": 16})
        source = TaskSource(task, 60, 0, widen=0.5)
        largest = []
        for progress in (0, 0.1, 0.25, 0.5, 1):
            x = [source.next(60, 8, progress)[0].reshape(8, -1)[:, :2] for _ in range(40)]
            largest.append(int(np.max(x)))
        self.assertEqual(largest, [1, 1, 4, 16, 16])  # 16 to the power of twice the progress
        self.assertGreater(TaskSource(task, 60, 0).next(60, 40, 0)[0][:, :2].max(), 4)

    def test_held_out_sequences_are_no_training_sequences(self):
        task = make_task(RECALL)
        held_out = {row.tobytes() for row in TaskSource(task, 31, 0)._sample.tokens}
        for seed in (0, 1):
            source = TaskSource(task, 31, seed)
            for _ in range(20):
                inputs, targets, _ = source.next(31, 4, 0)
                rows = np.concatenate((inputs[:, :1], targets), axis=1)
                self.assertFalse(held_out & {row.tobytes() for row in rows})


class TrainingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.root = os.path.join(self.folder, "library")
        support.write_corpus(self.root)
        sample_size = mock.patch.object(CorpusSource, "_SAMPLE_TOKENS", 256)
        sample_size.start()
        self.addCleanup(sample_size.stop)

    def write_recipe(self, **sections):
        path = os.path.join(self.folder, "recipe.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"config": support.tiny_config(), **sections}, file)
        return path

    def call(self, module, *arguments):
        """Runs a module's main() like the command line would; returns its output."""
        output = io.StringIO()
        with mock.patch.object(sys, "argv", [module.__name__, *arguments]), \
                contextlib.redirect_stdout(output):
            module.main()
        return output.getvalue()

    def train(self, run, *more, **sections):
        return self.call(train, "--recipe", self.write_recipe(**sections), "--run",
                         os.path.join(self.folder, run), "--data-root", self.root, "--steps", "6",
                         "--batch-tokens", "64", "--phases", "16:0.5,20-32:0.5", "--log-steps", "2",
                         "--eval-steps", "4", "--held-out-length", "32", "--compute-dtype",
                         "float32", *more)

    def checkpoint(self, run):
        return os.path.join(self.folder, run, train.CHECKPOINT)

    def saved(self, run):
        return torch.load(self.checkpoint(run))

    def assert_same_weights(self, run, other, same=True):
        one, two = self.saved(run)["model"], self.saved(other)["model"]
        equal = [torch.equal(tensor, two[name]) for name, tensor in one.items()]
        self.assertEqual(all(equal), same)

    def train_three_steps(self, run, **sections):
        train_step, calls = train.Trainer.train_step, []

        def stop_after_three(trainer):
            if len(calls) == 3:
                trainer.save()
                raise KeyboardInterrupt
            calls.append(1)
            return train_step(trainer)

        with mock.patch.object(train.Trainer, "train_step", stop_after_three), \
                self.assertRaises(KeyboardInterrupt):
            self.train(run, **sections)

    def test_a_resumed_run_equals_an_unbroken_one(self):
        for name, sections in (("files", {}), ("documents", {"task": {"name": "python_documents"}}),
                               ("task", {"task": RECALL}), ("muon", {"training": {"optimizer": "muon"}})):
            with self.subTest(source=name):
                whole, broken = name + "-whole", name + "-broken"
                self.train(whole, "--resume", **sections)  # without a checkpoint to resume
                self.train_three_steps(broken, **sections)
                with self.assertRaisesRegex(ValueError, "--resume"):
                    self.train(broken, **sections)
                self.assert_same_weights(whole, broken, same=False)
                self.train(broken, "--resume", **sections)
                self.assert_same_weights(whole, broken)
                self.assertEqual(self.saved(whole)["tokens"], self.saved(broken)["tokens"])
        self.assert_same_weights("files-whole", "documents-whole", same=False)
        self.assert_same_weights("files-whole", "muon-whole", same=False)
        with self.assertRaisesRegex(ValueError, "trained with --optimizer muon, not adamw"):
            self.train("muon-broken", "--resume")
        with self.assertRaisesRegex(ValueError, "trained on"):
            self.train("files-broken", "--resume", task=RECALL)
        with self.assertRaisesRegex(ValueError, "model differs"):
            self.train("files-broken", "--resume", "--mixer", "full_attention")

    def test_the_curve_names_what_it_measures(self):
        for run, metric, sections in (("bytes", "held_out_bpb", {}),
                                      ("task", "held_out_accuracy", {"task": RECALL})):
            self.assertIn(metric, self.train(run, **sections))
            with open(os.path.join(self.folder, run, "curve.csv"), encoding="utf-8") as file:
                header, *rows = [line.strip().split(",") for line in file]
            self.assertEqual(header[-1], metric)
            self.assertEqual([(row[0], row[3]) for row in rows],
                             [("2", "16"), ("4", "32"), ("6", "32")])
            self.assertGreaterEqual(float(rows[-1][-1]), 0)

    def test_products_are_bfloat16_where_it_is_fast(self):
        dtypes = []
        for flags in ("fma avx2", "avx2 avx512f avx512bw"):
            with mock.patch.object(train, "open", mock.mock_open(read_data=flags), create=True):
                dtypes.append(train.fast_dtype("cpu"))
        self.assertEqual(dtypes, ["float32", "bfloat16"])
        self.assertEqual(train.fast_dtype("cuda"), "bfloat16")

    def test_the_reference_blas_is_named(self):
        folder = "/usr/lib/x86_64-linux-gnu"
        for loaded, named in ((f"{folder}/blas/libblas.so.3.11.0", True), (f"{folder}/openblas-pthread/libblas.so.3", False)):
            maps = f"7f00-7f01 r-xp 00000000 fe:01 77   {loaded}\n7f02-7f03 rw-p 00000000 00:00 0\n"
            with mock.patch.object(train, "open", mock.mock_open(read_data=maps), create=True):
                self.assertEqual(train.reference_blas(), loaded if named else None)

    def test_training_with_chunks_side_by_side_is_the_same(self):
        config = support.tiny_config(layer_types=["ovq_attention", "gated_delta_net"],
                                     gdn={"num_heads": 1, "head_dim": 8, "value_head_dim": 8, "conv_size": 4})
        make, made = train.make_model, []

        def as_on_a_gpu(config, args):
            made.append(make(config, mock.Mock(**{**vars(args), "device": "cuda"})))
            return made[0].double()

        def in_float64(config, args):
            return make(config, args).double()

        with mock.patch.dict(train.DTYPES, float32=torch.float64):
            for run, maker in (("loop", in_float64), ("aside", as_on_a_gpu)):
                with mock.patch.object(train, "make_model", maker):
                    self.train(run, config=config)
        self.assertIsInstance(made[0], train.Decoder)
        bits = [[row[5] for row in self.saved(run)["history"]] for run in ("loop", "aside")]
        np.testing.assert_allclose(*bits, rtol=1e-9)
        for kind, rules in (("mesa_net", {}), ("ovq_attention", {"delta_rule": True})):
            raw = support.tiny_config(layer_types=["ovq_attention", kind], mesa_net={"num_heads": 2, "head_dim": 8})
            raw["ovq"].update(rules)
            model = make(train.config_from_dict(raw), mock.Mock(device="cuda", ablation="none", compute_dtype="float32"))
            self.assertEqual(type(model), train.OvqModel)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_training_on_a_gpu(self):
        for mixer in ("ovq_attention", "closest_pair_attention", "full_attention", "vq_attention", "gated_delta_net"):
            with self.subTest(mixer=mixer):
                self.train(mixer, "--device", "cuda", "--mixer", mixer, config=support.tiny_config(
                    vq={"codebook_size": 4}, gdn={"num_heads": 1, "head_dim": 8, "value_head_dim": 8, "conv_size": 4}))
                on_cpu = mixer + "-cpu"
                self.train(on_cpu, "--workers", "1", "--mixer", mixer, config=self.saved(mixer)["config"])
                bits = [[row[5] for row in self.saved(run)["history"]] for run in (mixer, on_cpu)]
                np.testing.assert_allclose(*bits, rtol=1e-2)
        counts = []
        with mock.patch.object(train.Trainer, "run", lambda trainer: counts.extend(
                state["step"].device.type for state in trainer.optimizer.state.values())):
            self.train("ovq_attention", "--resume", "--device", "cuda", "--mixer", "ovq_attention",
                       config=self.saved("ovq_attention")["config"])
        self.assertEqual(set(counts), {"cpu"})
        model = os.path.join(self.folder, "model")
        self.call(export, "--checkpoint", self.checkpoint("ovq_attention"), "--out", model)
        tokens = np.random.default_rng(0).integers(0, 256, 100)
        ours, theirs = (ReferencePredictor(model, device=device).predict(tokens, 16) for device in ("cuda", "cpu"))
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-3)

    def test_the_command_line_wins_over_the_recipe(self):
        training = {"lr": 0.5, "seed": 7, "phases": "8:1", "recompute_chunks": True}
        self.train("run", "--seed", "8", training=training)
        args = self.saved("run")["args"]
        self.assertEqual((args["lr"], args["seed"], args["phases"], args["recompute_chunks"]),
                         (0.5, 8, "16:0.5,20-32:0.5", True))

    def test_config_replaces_fields_of_the_recipe(self):
        self.train("changed", "--config", '{"intermediate_size": 32, "ovq": {"max_centroids": 12}}')
        self.train("plain")
        changed, plain = (self.saved(run)["config"] for run in ("changed", "plain"))
        self.assertEqual(changed, {**plain, "intermediate_size": 32, "ovq": {**plain["ovq"], "max_centroids": 12}})
        with self.assertRaisesRegex(ConfigError, "intermediate"):
            self.train("wrong", "--config", '{"intermediate_sise": 32}')

    def test_mixer_replaces_the_ovq_layers_only(self):
        config = support.tiny_config(vq={"codebook_size": 4})
        for mixer in ("full_attention", "vq_attention"):
            self.train(mixer, "--mixer", mixer, config=config)
            self.assertEqual(self.saved(mixer)["config"]["layer_types"],
                             ["sliding_attention", mixer])

    def test_closest_pairs_are_an_update_of_the_ovq_layers(self):
        self.train("pairs", "--mixer", "closest_pair_attention")
        self.train("ovq")
        pairs, ovq = (self.saved(run)["config"] for run in ("pairs", "ovq"))
        self.assertEqual(pairs, {**ovq, "ovq": {**ovq["ovq"], "update": "closest-pair"}})
        self.assert_same_weights("pairs", "ovq", same=False)
        self.train("again", "--lr", "0", "--mixer", "closest_pair_attention", "--init", self.checkpoint("ovq"))
        self.assert_same_weights("again", "ovq")

    def test_init_takes_the_weights_of_another_run(self):
        self.train("first")
        still = ("--lr", "0", "--seed", "5")  # the weights stay unchanged
        self.train("other", *still)
        self.assert_same_weights("first", "other", same=False)
        self.train("second", *still, "--init", self.checkpoint("first"))
        self.assert_same_weights("first", "second")
        with self.assertRaisesRegex(ValueError, "--init: .*first.* has no weights of this"):
            self.train("third", "--init", self.checkpoint("first"),
                       config=support.tiny_config(intermediate_size=32))

    def test_init_takes_a_model_folder_beside_the_recipe_by_mixer(self):
        self.train("first")
        model = os.path.join(self.folder, "tiny-ovq")
        self.call(export, "--checkpoint", self.checkpoint("first"), "--out", model,
                  "--dtype", "float32")
        self.train("second", "--lr", "0", "--seed", "5", "--init", "tiny-{mixer}")
        self.assert_same_weights("first", "second")
        with self.assertRaisesRegex(OSError, "tiny-full"):
            self.train("third", "--mixer", "full_attention", "--init", "tiny-{mixer}")

    def test_token_shifts_are_learned_from_weights_without_them(self):
        self.train("plain")
        self.train("shifted", "--token-shift", "--lr", "0", "--init", self.checkpoint("plain"))
        self.assert_same_weights("plain", "shifted")
        self.assertTrue(self.saved("shifted")["config"]["token_shift"])
        shift = "model.layers.1.self_attn.v_shift"
        self.assertEqual(self.saved("shifted")["model"][shift].abs().max(), 0)
        self.train("learned", "--token-shift", "--init", self.checkpoint("plain"))
        self.assertGreater(self.saved("learned")["model"][shift].abs().min(), 0)
        with self.assertRaisesRegex(ValueError, "--init: .*shifted.* has no weights of this"):
            self.train("back", "--init", self.checkpoint("shifted"))

    @staticmethod
    def without_text(vocab_size):
        config = support.tiny_config(vocab_size=vocab_size)
        for of_text in ("tokenizer", "bos_token_id", "eos_token_id"):
            del config[of_text]
        return config

    def test_functions_of_other_sizes_keep_the_tokens_they_share(self):
        small = {"name": "linear_icl", "vector_tokens": 2, "x_max": 3, "a_end": 3, "b_end": 3,
                 "n_functions": 2, "n_identifiers": 4}
        large = {**small, "vector_tokens": 3, "a_end": 5, "b_end": 4, "n_identifiers": 6}
        # numbers 0..8, identifiers 9..12 and the end; numbers 0..15, identifiers 16..21 and the end
        self.train("small", task=small, config=self.without_text(14))
        self.train("large", "--lr", "0", "--init", self.checkpoint("small"), "--task",
                   json.dumps({name: large[name] for name in large if large[name] != small[name]}),
                   task=small, config=self.without_text(23))
        self.assertEqual(self.saved("large")["task"], large)
        before, after = (self.saved(run)["model"].pop("model.embed_tokens.weight")
                         for run in ("small", "large"))
        for old, new in ((slice(9), slice(9)), (slice(9, 13), slice(16, 20)), (slice(13, 14), slice(22, 23))):
            self.assertTrue(torch.equal(before[old], after[new]))
        drawn = torch.cat((after[9:16], after[20:22]))
        self.assertEqual(len(torch.unique(drawn, dim=0)), 9)
        self.assertLess((drawn - before.mean(0)).abs().max(), 6 * before.std())
        back = train.token_rows(after, train.make_task(large), train.make_task(small), None)
        self.assertTrue(torch.equal(back, before))

    def test_codebooks_start_as_keys_of_the_initial_weights(self):
        config = support.tiny_config(vq={"codebook_size": 4})
        self.train("full", "--mixer", "full_attention", config=config)
        self.train("vq", "--mixer", "vq_attention", "--lr", "0", "--init",
                   self.checkpoint("full"), config=config)
        weights = self.saved("vq")["model"]
        full, name = self.saved("full")["model"], "model.layers.1.self_attn.codebook"
        self.assertTrue(all(torch.equal(full[own], weights[own]) for own in full))
        model = train.OvqModel(train.config_from_dict(self.saved("full")["config"]))
        model.load_state_dict(full)
        keys = []
        model.model.layers[1].self_attn.register_forward_pre_hook(
            lambda module, inputs: keys.append(module.k_proj(inputs[0])))
        source = train.CorpusSource(train.CORPORA["python_files"](self.root), 32, 0)
        model(torch.from_numpy(source.next(16, 4, 0)[0]))
        keys = unit_norm(keys[0].flatten(0, 1).unflatten(-1, (2, 8))).transpose(0, 1)
        for head_keys, codes in zip(keys, weights[name]):
            distances = (codes[:, None] - head_keys[None]).abs().amax(-1)
            self.assertLess(distances.amin(-1).max(), 1e-5)
            self.assertEqual(len(set(distances.argmin(-1).tolist())), 4)
        torch.testing.assert_close(weights[name].norm(dim=-1), torch.ones(2, 4))

    def test_transformer_vqs_codes_start_as_keys_of_weights_without_codes(self):
        config = support.tiny_config(transformer_vq={"num_heads": 1, "head_dim": 8, "value_head_dim": 8,
                                                     "codebook_size": 4, "mem_len": 4})
        arguments = "--mixer", "transformer_vq", "--lr"
        self.train("exact", *arguments, "0.01", "--ablation", "exact_keys", config=config)
        self.train("codes", *arguments, "0", "--init", self.checkpoint("exact"), config=config)
        exact, coded = (self.saved(run)["model"] for run in ("exact", "codes"))
        name = "model.layers.1.self_attn.codebook"
        self.assertEqual(set(coded) - set(exact), {name})
        model = train.OvqModel(train.config_from_dict(self.saved("exact")["config"]), ablation="exact_keys")
        model.load_state_dict(exact)
        keys = []
        model.model.layers[1].self_attn.register_forward_pre_hook(
            lambda module, inputs: keys.append(module.keys(module.k_proj(inputs[0]))))
        source = train.CorpusSource(train.CORPORA["python_files"](self.root), 32, 0)
        model(torch.from_numpy(source.next(16, 4, 0)[0]))
        distances = (coded[name][0, :, None] - keys[0].flatten(0, 2)).abs().amax(-1)
        self.assertLess(distances.amin(-1).max(), 1e-5)
        self.assertEqual(len(set(distances.argmin(-1).tolist())), 4)

    def test_a_run_that_ends_early_is_the_beginning_of_the_whole(self):
        self.train("whole")
        self.train("early", "--last-step", "4")
        self.assertEqual(self.saved("early")["step"], 4)
        self.assertEqual(self.saved("early")["history"][-1][:2], self.saved("whole")["history"][1][:2])
        self.train("early", "--resume", "--last-step", "3")  # lies behind it
        self.assertEqual(self.saved("early")["step"], 4)
        self.train("early", "--resume")
        self.assert_same_weights("whole", "early")
        with self.assertRaisesRegex(ValueError, "--last-step: 0 is not positive"):
            self.train("wrong", "--last-step", "0")

    def test_phases_end_early_where_enough_is_predicted_right(self):
        phases = ("--phases", "16:0.4,20:0.4,32:0.2", "--steps", "10", "--advance-at")
        def lengths(run, share, right):
            with mock.patch.object(train.Trainer, "train_step", self.stepping(right)):
                self.train(run, *phases, share)
            return [row[3] for row in self.saved(run)["history"]]
        # Lines at steps 2, 4, 6, 8 and 10 say which phase the next step has.
        self.assertEqual(lengths("never", "0.9", 0.8), [16, 20, 20, 32, 32])
        # From step 2 on 20 has two thirds of the 8 steps left; at 4 it ends, too; the last never does.
        self.assertEqual(lengths("always", "0.9", 0.95), [16, 20, 32, 32, 32])
        for share in ("0", "1.5"):
            with self.assertRaisesRegex(ValueError, f"--advance-at: {float(share)} is not above 0"):
                self.train("wrong", *phases, share)

    def stepping(self, right):
        train_step = train.Trainer.train_step

        def step(trainer):
            bits, _, end = train_step(trainer)
            return bits, torch.tensor(right), end
        return step

    def test_a_resumed_run_knows_which_phases_ended_early(self):
        # Whatever is predicted right, it is as much but for rounding.
        arguments = ("--phases", "16:0.5,20:0.3,32:0.2", "--steps", "12", "--advance-at", "0.0001")
        self.train("whole", *arguments)
        self.assertEqual([row[3] for row in self.saved("whole")["history"]], [16, 20, 32, 32, 32, 32])
        for last in (3, 4, 9):  # between two lines, at one and behind all that ended early
            self.train(f"broken-{last}", *arguments, "--last-step", str(last))
            self.train(f"broken-{last}", *arguments, "--resume")
            self.assert_same_weights("whole", f"broken-{last}")
        # A run that is resumed as a longer one goes on in the phase that it was in.
        self.train("longer", *arguments, "--last-step", "2")
        self.train("longer", *arguments[:2], "--steps", "24", *arguments[4:], "--last-step", "4", "--resume")
        self.assertEqual([row[3] for row in self.saved("longer")["history"]], [16, 20])
        with self.assertRaisesRegex(ValueError, "with --advance-at 0.0001, not None"):
            self.train("whole", *arguments[:-2], "--resume")
        with self.assertRaisesRegex(ValueError, "--minutes cannot go on with the clock of --steps"):
            self.train("longer", *arguments, "--minutes", "1", "--resume")

    def test_a_resumed_run_has_the_options_of_its_own_optimizer(self):
        self.train("run", "--last-step", "2")
        self.train("run", "--resume", "--weight-decay", "0.2", "--beta-lr-scale", "1", "--adam-beta2", "0.5")
        groups = self.saved("run")["optimizer"]["param_groups"]
        self.assertEqual([(group["weight_decay"], group["lr_scale"], group["betas"]) for group in groups],
                         [(decay, 1.0, (0.9, 0.5)) for decay in (0.2, 0.2, 0.0, 0.0)])

    def test_only_targets_with_a_weight_have_logits(self):
        inputs, targets = np.arange(12).reshape(2, 6) % 5, np.arange(1, 13).reshape(2, 6) % 5
        weights = np.array([[0, 0, 1, 0, 0, 2], [0, 3, 0, 0, 0, 0]], np.float32)
        share = train.Share.of(inputs, targets, weights / 6, "cpu")
        self.assertEqual(len(share.places), 256)  # one shape, whatever is chosen
        self.assertEqual((share.places[:3].tolist(), share.targets[:3].tolist()), ([2, 5, 7], [3, 1, 3]))
        self.assertEqual(share.weights.sum(), 1)
        model = train.OvqModel(train.config_from_dict(support.tiny_config()))
        decoder = train.Decoder(model.config)
        decoder.load_state_dict(model.state_dict())
        chosen = model(share.inputs).flatten(0, 1)[[2, 5, 7]]
        for reader in (model, decoder):
            self.assertTrue(torch.allclose(reader(share.inputs, None, share.places[:3]), chosen, atol=1e-5))

    def test_weights_that_are_not_finite_end_the_run_and_do_not_replace_the_checkpoint(self):
        self.train("run", "--last-step", "2")
        with self.assertRaisesRegex(ValueError, r"step 4: the loss is (nan|inf); try a lower --lr"):
            self.train("run", "--resume", "--lr", "1e38")
        self.assertEqual(self.saved("run")["step"], 2)
        with mock.patch.object(train.Trainer, "train_step", autospec=True, side_effect=self.lose_weights):
            with self.assertRaisesRegex(ValueError, "step 3: .* is not finite; try a lower --lr"):
                self.train("run", "--resume", "--last-step", "3")

    @staticmethod
    def lose_weights(trainer):
        next(trainer.model.parameters()).data.fill_(math.nan)
        trainer.step += 1
        return torch.tensor(1.0), torch.tensor(0.0), 0.5

    def test_a_run_is_not_resumed_as_another(self):
        self.train("run")
        with self.assertRaisesRegex(ValueError, "with --ablation none, not linear_growth"):
            self.train("run", "--resume", "--ablation", "linear_growth")

    def test_a_file_that_is_no_checkpoint_is_named(self):
        self.train("{run}")
        path, out = self.checkpoint("{run}"), os.path.join(self.folder, "model")
        self.train("from braces", "--init", path)
        with open(path, "rb") as file:
            whole = file.read()
        others = [b"", b"no checkpoint", whole[:len(whole) // 2]]
        for saved in ([1], {"model": {}}):
            file = io.BytesIO()
            torch.save(saved, file)
            others.append(file.getvalue())
        for content in others:
            with open(path, "wb") as file:
                file.write(content)
            for begin in (lambda: self.train("{run}", "--resume"), lambda: self.train("new", "--init", path),
                          lambda: self.call(export, "--checkpoint", path, "--out", out)):
                with self.assertRaisesRegex(ValueError, "{run}/checkpoint.pt: .*no checkpoint of train.py"):
                    begin()

    def test_errors_name_the_culprit(self):
        without_layers = support.tiny_config()
        del without_layers["layer_types"]
        for error, message, arguments, sections in (
                (ValueError, "unknown section 'model'", (), {"model": {}}),
                (ValueError, "task: not a JSON object", (), {"task": "basic_icr"}),
                (ValueError, "training: 'learning_rate' is no option", (),
                 {"training": {"learning_rate": 1}}),
                (ValueError, "training: 'run' is no option", (), {"training": {"run": "x"}}),
                (ValueError, "vocab_size: 258, but .* 10003", (), {"task": {"name": "basic_icr"}}),
                (ValueError, "vocab_size: 100, but .* 258", (),
                 {"config": self.without_text(100)}),
                (ValueError, "python_documents has no further fields", (),
                 {"task": {"name": "python_documents", "n_queries": 1}}),
                (TaskError, "task name: 'recall'", (), {"task": {"name": "recall"}}),
                (TaskError, r"task name: \[\]", ("--task", '{"name": []}'), {}),
                (ValueError, "task: tokenizer: 5 is no path", (), {"task": {"name": "conversations", "tokenizer": 5}}),
                *((ValueError, f"--variety: {value} is {wrong}", ("--variety", value), {"task": RECALL})
                  for value, wrong in (("-0.5", "not positive"), ("nan", "not positive"), ("inf", "not finite"))),
                (ValueError, "--variety: expected a task that has it, not python_documents", ("--variety", "0.5"),
                 {"task": {"name": "python_documents"}}),
                (ValueError, "--widen: expected a task that has it, not conversations", ("--widen", "0.5"),
                 {"task": {"name": "conversations", "tokenizer": TOKENIZER}}),
                (TaskError, "^length: 5 is not", ("--phases", "40:0.5,5:0.5"), {"task": RECALL}),
                (TaskError, "^length: 5 is not", ("--phases", "5-40:1"), {"task": RECALL}),
                (ValueError, "task: agents: 2 is no share from 0 to 1", (),
                 {"task": {"name": "conversations", "tokenizer": TOKENIZER, "agents": 2}}),
                (ValueError, "conversations has the further fields", (),
                 {"task": {"name": "conversations", "tokenizer": TOKENIZER, "words": 2}}),
                (DataError, "context length 99999", ("--phases", "40:0.5,99999:0.5"), {}),
                (ValueError, "--widen: 1.5 is not", ("--widen", "1.5"),
                 {"task": {"name": "linear_icl", "vector_tokens": 2, "x_max": 9}}),
                (ValueError, "task: agents: 2 is no share from 0 to 1", (),
                 {"task": {"name": "conversations", "tokenizer": TOKENIZER, "agents": 2}}),
                (ValueError, "conversations has the further fields", (),
                 {"task": {"name": "conversations", "tokenizer": TOKENIZER, "words": 2}}),
                (DataError, "context length 99999", ("--held-out-length", "99999"), {}),
                (ConfigError, "layer_types", ("--mixer", "full_attention"),
                 {"config": without_layers}),
                *((ValueError, f"{option}: {value} is {wrong}", (option, value), {}) for option, value, wrong in (
                    ("--steps", "-6", _BELOW), ("--minutes", "-0.5", _BELOW), ("--minutes", "nan", _BELOW),
                    ("--minutes", "inf", "not finite"), ("--beta-lr-scale", "inf", "not finite"), ("--lr", "nan", _BELOW),
                    ("--warmup-steps", "-1", _BELOW), ("--unscored-weight", "-0.5", _BELOW),
                    ("--log-steps", "0", "not positive"), ("--eval-steps", "0", "not positive"),
                    ("--held-out-length", "0", "not positive"), ("--grad-clip", "0.0", "not positive"),
                    ("--batch-tokens", "-64", "not positive"), ("--workers", "0", "not positive"))),
                (ValueError, "--steps and --minutes", ("--steps", "0"), {})):
            with self.subTest(message=message), self.assertRaisesRegex(error, message):
                self.train("wrong", *arguments, **sections)

    def test_what_would_end_a_later_phase_ends_the_run_before_its_first_step(self):
        long_keys = {**RECALL, "key_tokens": 8, "value_tokens": 8, "n_symbols": 4}  # at first of three tokens
        widens = ("--widen", "1", "--held-out-length", "100", "--phases")
        with mock.patch.object(train.Trainer, "train_step", side_effect=AssertionError):
            for error, message, arguments, sections in (
                    (ConfigError, "ovq.max_centroids: 1 gives no centroid", ("--phases", "16:0.5,16:0.5:1"), {}),
                    (TaskError, "n_symbols: 4 is not enough", (*widens, "60:0.1,400:0.9"),
                     {"task": long_keys, "config": self.without_text(20)}),
                    (ValueError, "no conversation of 64 tokens", ("--held-out-length", "512", "--phases", "256:0.5,64:0.5"),
                     {"task": {"name": "conversations", "tokenizer": TOKENIZER, "agents": 0.5},
                      "config": self.without_text(2048)}),
                    (AssertionError, "", (*widens, "60:0.5,400:0.5"), {"task": long_keys, "config": self.without_text(20)})):
                with self.subTest(arguments=arguments), self.assertRaisesRegex(error, message):
                    self.train("wrong", *arguments, **sections)

    def test_a_recipes_options_are_checked_like_the_command_lines(self):
        for name, value in (("ablation", "all"), ("mixer", "ovq"), ("lr", "fast"),
                            ("recompute_chunks", 3), ("device", "tpu")):
            shown = io.StringIO()
            with contextlib.redirect_stderr(shown), self.assertRaises(SystemExit):
                self.train("wrong", training={name: value})
            self.assertIn(f"--{name.replace('_', '-')}", shown.getvalue())

    def test_the_recipes_that_ship_are_valid(self):
        folder = os.path.join(support.TRAINING, "recipes")
        for name in os.listdir(folder):
            arguments = ["train.py", "--recipe", os.path.join(folder, name), "--run", "x"]
            with self.subTest(recipe=name), mock.patch.object(sys, "argv", arguments):
                args, recipe = train.parse_args()
                config = train.make_config(recipe, args.mixer)
                parse_phases(args.phases)
                if recipe.get("task", {}).get("name") == "texts":
                    self.assertEqual((config.tokenizer, config.bos_token_id), ("", 0))
                elif recipe.get("task", {}).get("name") in (None, *train.CORPORA):
                    self.assertEqual((config.vocab_size, config.tokenizer), (258, "bytes"))
                else:
                    train.make_source(recipe, args, config).next(512, 1, 0)

    def test_the_program_without_matplotlib_and_interrupted(self):
        modules = os.path.join(self.folder, "modules")
        os.makedirs(modules)
        with open(os.path.join(modules, "matplotlib.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError\n")
        run = os.path.join(self.folder, "run")
        process = subprocess.Popen(
            [sys.executable, "train.py", "--recipe", self.write_recipe(), "--run", run, "--data-root",
             self.root, "--minutes", "60", "--batch-tokens", "64", "--phases", "16:1",
             "--log-steps", "1000000", "--held-out-length", "32", "--compute-dtype", "float32"],
            cwd=support.TRAINING, env={**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        lines = [process.stdout.readline() for _ in range(3)]
        self.assertIn("matplotlib is not installed", lines[1])
        self.assertRegex(lines[2], r"^step \d+ after \d+ s, about \d+ min left")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(stderr, r"^train.py: interrupted; [^\n]*\n\Z")

    def test_an_interrupt_waits_for_the_end_of_the_step_and_a_second_does_not(self):
        for number, steps in ((1, 1), (2, 0)):
            done = []
            with self.subTest(number=number), self.assertRaises(KeyboardInterrupt):
                with train.interrupted_afterwards():
                    for _ in range(number):
                        signal.raise_signal(signal.SIGINT)
                    done.append(True)
            self.assertEqual(len(done), steps)
            self.assertEqual(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_export_evaluate_and_sample(self):
        self.train("run")
        for name in ("curve.csv", "curve.png"):
            self.assertTrue(os.path.getsize(os.path.join(self.folder, "run", name)))
        model, out = (os.path.join(self.folder, name) for name in ("model", "evaluation"))
        arguments = ("--checkpoint", self.checkpoint("run"), "--out", model)
        self.call(export, *arguments)
        with self.assertRaisesRegex(ValueError, "config.json exists"):
            self.call(export, *arguments)
        self.call(export, *arguments, "--overwrite")
        whole = load_model(model)
        self.assertEqual(whole.config.torch_dtype, "bfloat16")
        self.call(export, *arguments, "--overwrite", "--shard-mb", "0.002")
        self.assertGreater(len(os.listdir(model)), 4)
        for name, tensor in load_model(model).state_dict().items():
            self.assertTrue(torch.equal(tensor, whole.state_dict()[name]))
        for option in ("--shard-mb", "--sharpen"):
            for value, wrong in (("0", "0.0 is not positive"), ("nan", "nan is not positive"), ("inf", "inf is not finite")):
                with self.assertRaisesRegex(ValueError, f"{option}: {wrong}"):
                    self.call(export, *arguments, "--overwrite", option, value)
        tokens = torch.tensor([[1, 2, 3, 4]])
        sharp = os.path.join(self.folder, "sharp")
        self.call(export, "--checkpoint", self.checkpoint("run"), "--out", sharp, "--sharpen", "4")
        with torch.no_grad():
            torch.testing.assert_close(load_model(sharp)(tokens), 4 * whole(tokens))
        mean = os.path.join(self.folder, "mean")
        self.call(export, "--checkpoint", self.checkpoint("run"), "--out", mean, "--mean-with", sharp, "--dtype", "float32")
        weights, sharper = load_model(mean).state_dict(), load_model(sharp).state_dict()
        trained = torch.load(self.checkpoint("run"))["model"]
        for name, weight in weights.items():
            torch.testing.assert_close(weight, (trained[name] + sharper[name]) / 2)
        narrow = os.path.join(self.folder, "narrow")
        config = config_from_dict(support.tiny_config(intermediate_size=8))
        save_model(narrow, config, OvqModel(config).state_dict(), "float32")
        with self.assertRaisesRegex(ValueError, "--mean-with: .*narrow has no weights of this model's"):
            self.call(export, "--checkpoint", self.checkpoint("run"), "--out", mean, "--overwrite", "--mean-with", narrow)
        self.call(evaluate, "--model", model, "--out", out, "--data-root", self.root,
                  "--lengths", "16,32,64", "--scales", "1,2")
        with open(os.path.join(out, "evaluation.csv"), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 7)
        with open(os.path.join(out, "evaluation.md"), encoding="utf-8") as file:
            self.assertIn("| 32 |", file.read())
        self.call(evaluate, "--model", model, "--out", out, "--data-root", self.root,
                  "--lengths", "32", "--scales", "1", "--documents")
        n_contexts = sum((len(stream) - 1) // 32
                         for stream in Documents(self.root).held_out.values())
        with open(os.path.join(out, "evaluation.md"), encoding="utf-8") as file:
            self.assertIn(f"over the same {32 * n_contexts} tokens", file.read())
        greedy = self.call(sample, "--model", model, "--prompt", "def ", "--tokens", "5")
        self.assertTrue(greedy.startswith("def "))
        for temperature in ("-1", "nan"):
            with self.assertRaisesRegex(ValueError, "--temperature: .* is neither positive nor 0"):
                self.call(sample, "--model", model, "--prompt", "def ", f"--temperature={temperature}")

    def test_models_without_a_last_norm_or_with_biases_are_exported_and_sharpened(self):
        checkpoint, out = (os.path.join(self.folder, name) for name in ("checkpoint.pt", "model"))
        tokens = torch.tensor([[1, 2, 3, 4]])
        for changes in ({"final_norm": False}, {"norm_bias": True}, {"lm_head_bias": True, "logit_scale": 0.5}):
            model = OvqModel(config_from_dict(support.tiny_config(**changes)))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("bias"):
                        parameter.uniform_(-1, 1)
                expected = model(tokens)
            torch.save({"config": config_to_dict(model.config), "model": model.state_dict()}, checkpoint)
            for factor in ((), ("--sharpen", "4")):
                with self.subTest(changes=changes, factor=factor):
                    self.call(export, "--checkpoint", checkpoint, "--out", out, "--dtype", "float32", "--overwrite", *factor)
                    with torch.no_grad():
                        torch.testing.assert_close(load_model(out)(tokens), expected * (4 if factor else 1))

    def test_contexts_of_an_evaluation_begin_with_bos_and_read_the_same_bytes(self):
        documents, read = Documents(self.root), {}
        for length in (16, 64):
            inputs, targets = evaluate.held_out_contexts(documents, length, 64, 0)
            self.assertEqual(set(inputs[:, 0].tolist()), {BOS})
            np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
            read[length] = targets.ravel().tolist()
        self.assertEqual(read[16], read[64])
        first, *_ = documents.held_out.values()
        self.assertEqual(read[64][:64], first[1:65].tolist())

    def test_every_command_has_help_and_names_what_is_wrong(self):
        for name in ("data", "train", "export", "evaluate", "sample", "tasks"):
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
