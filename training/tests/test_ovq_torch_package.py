"""ovq_torch as researchers use it: installed by pip, with transformers, served, and to convert a model."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
import torch.nn.functional as F

import support
import convert_full
from ovq.config import config_from_dict
from ovq.model import OvqModel, load_model, save_model, write_json
from ovq_torch import Decoder
from predictors import PredictionError, connected, started_server

SERVER = os.path.join(support.TRAINING, "..", "build", "cpu", "bin", "ovq-server")


def missing(*modules):
    return [name for name in modules if importlib.util.find_spec(name) is None]


class PackageTest(unittest.TestCase):
    @unittest.skipIf(missing("ensurepip", "setuptools", "wheel"), "needs python3-venv, python3-setuptools, python3-wheel")
    def test_pip_installs_it_and_the_readmes_example_runs(self):
        def run(*command):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout

        with tempfile.TemporaryDirectory() as folder:
            source, python = os.path.join(folder, "training"), os.path.join(folder, "venv", "bin", "python")
            os.makedirs(source)
            shutil.copy(os.path.join(support.TRAINING, "pyproject.toml"), source)  # pip leaves a build folder there
            for package in ("ovq", "ovq_torch"):
                shutil.copytree(os.path.join(support.TRAINING, package), os.path.join(source, package),
                                ignore=shutil.ignore_patterns("__pycache__"))
            run("/usr/bin/python3", "-m", "venv", "--system-site-packages", os.path.join(folder, "venv"))
            run(python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index",
                "--disable-pip-version-check", source)
            shutil.rmtree(source)
            with open(os.path.join(support.TRAINING, "ovq_torch", "README.md"), encoding="utf-8") as file:
                example, = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(support.tiny_config(), file)
            more = "import ovq_torch; print(y.shape, token.shape, packed.shape, logits.shape, ovq_torch.__file__)"
            shown = run(python, "-c", example + more)
            self.assertRegex(shown, r"\[2, 1000, 256\].*\[2, 256\].*\[1, 1000, 256\].*\[1, 300, 258\].*site-packages")
            load_model(os.path.join(folder, "my-model"))
            self.assertTrue(os.path.exists(run(
                python, "-c", "import ovq.fused as f; print(f._FOLDER + '/fused.cc', end='')")))


class ServedTest(unittest.TestCase):
    @unittest.skipUnless(os.path.exists(SERVER), "needs build/cpu/bin/ovq-server")
    def test_a_saved_model_is_served_with_the_same_logits(self):
        torch.manual_seed(5)
        kinds = ["sliding_attention", "ovq_attention", "gated_delta_net", "kvm_attention"]
        model = Decoder(config_from_dict(support.tiny_config(
            layer_types=kinds, num_hidden_layers=4, gdn={"num_heads": 2, "head_dim": 8, "value_head_dim": 8, "conv_size": 4},
            kvm={"chunk_len": 8, "state_budget_mode": "power_law", "n_max_d_chunks": 9})))
        tokens = torch.randint(0, 256, (80,))
        with torch.no_grad():
            expected = model(tokens[None, :-1])[0].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        with tempfile.TemporaryDirectory() as folder:
            model.save_native(folder)
            with started_server(SERVER, folder, ("--compute-dtype", "f32", "--state-dtype", "f32")) as address:
                try:
                    with connected(address, 60) as served:
                        got = served.predict(tokens.numpy(), None)
                except PredictionError as error:
                    self.skipTest(str(error))
        # float32 logits are within 30 millionths (test_golden.py)
        torch.testing.assert_close(torch.from_numpy(got.logprobs).float(), expected, rtol=0, atol=1e-4)


class FakeGeneration:
    """The part of transformers' GenerationMixin that OvqForCausalLM extends."""

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs):
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            model_kwargs["attention_mask"] = torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        return model_kwargs

    def generate(self, input_ids, max_new_tokens, **model_kwargs):
        for _ in range(max_new_tokens):
            outputs = self(**self.prepare_inputs_for_generation(input_ids, **model_kwargs))
            model_kwargs = self._update_model_kwargs_for_generation(outputs, model_kwargs)
            input_ids = torch.cat((input_ids, outputs.logits[:, -1:].argmax(-1)), 1)
        return input_ids


class FakeConfig:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class FakeModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def post_init(self):
        pass


class TransformersTest(unittest.TestCase):
    """OvqForCausalLM by classes that stand for transformers', and by transformers itself where it is installed."""

    def setUp(self):
        torch.manual_seed(6)

    @contextlib.contextmanager
    def fake_transformers(self):
        outputs = types.SimpleNamespace(ModelOutput=object)
        registry = types.SimpleNamespace(register=lambda *_, exist_ok: self.assertTrue(exist_ok))
        fake = types.SimpleNamespace(AutoConfig=registry, AutoModelForCausalLM=registry, GenerationMixin=FakeGeneration, PretrainedConfig=FakeConfig,
                                     PreTrainedModel=FakeModel, modeling_outputs=outputs)
        import ovq_torch
        with mock.patch.dict(sys.modules, {"transformers": fake, "transformers.modeling_outputs": outputs}):
            sys.modules.pop("ovq_torch.for_transformers", None)
            yield ovq_torch.OvqConfig, ovq_torch.OvqForCausalLM
        del ovq_torch.for_transformers  # whoever imports it next gets the real one's

    def check(self, config, model):
        decoder, tokens = model.decoder, torch.randint(0, 258, (2, 30))
        self.assertEqual(set(model.state_dict()), set(OvqModel(config.checked()).state_dict()))
        labels = torch.where(torch.arange(30) < 5, -100, tokens)
        out = model(tokens, labels=labels)
        with torch.no_grad():
            logits = decoder(tokens)
        torch.testing.assert_close(out.logits, logits, rtol=0, atol=3e-5)
        loss = F.cross_entropy(logits[:, 4:-1].flatten(0, 1), tokens[:, 5:].flatten())
        torch.testing.assert_close(out.loss, loss)
        out.loss.backward()
        self.assertGreater(model.get_input_embeddings().weight.grad.abs().sum(), 0)
        with torch.no_grad():
            self.assertLess((model(tokens[:, 12:], state=model(tokens[:, :12]).state).logits - logits[:, 12:])
                            .abs().max(), 3e-5)
            alone = model.generate(tokens[:1, 7:], max_new_tokens=6, do_sample=False)
            mask = torch.ones_like(tokens)
            mask[0, :7] = 0
            together = model.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False)
        self.assertEqual(alone.shape, (1, 29))
        self.assertEqual(together[0, 7:].tolist(), alone[0].tolist())
        with tempfile.TemporaryDirectory() as folder:
            model.save_native(folder)
            torch.testing.assert_close(load_model(folder)(tokens), logits, rtol=0, atol=3e-5)

    def test_with_classes_that_stand_for_transformers(self):
        def generate(model, *arguments, do_sample, **options):
            return FakeGeneration.generate(model, *arguments, **options)

        with self.fake_transformers() as (config_class, model_class):
            config = config_class(**support.tiny_config())
            self.assertEqual((config.vocab_size, config.bos_token_id), (258, 256))
            self.assertEqual(config_class(native=config.native).checked(), config.checked())
            with self.assertRaisesRegex(ValueError, "^ovq.chunks: unknown"):
                config_class(**support.tiny_config(ovq={"chunks": 1})).checked()
            with mock.patch.object(model_class, "generate", generate, create=True):
                self.check(config, model_class(config))

    def test_a_state_follows_the_sequences_that_a_beam_search_chooses(self):
        kinds = ["ovq_attention", "gated_delta_net", "sliding_attention"]
        raw = support.tiny_config(num_hidden_layers=3, layer_types=kinds, token_shift=True,
                                  gdn={"num_heads": 1, "head_dim": 8, "value_head_dim": 8, "conv_size": 4})
        with self.fake_transformers() as (config_class, model_class), torch.no_grad():
            model, ids, kept = model_class(config_class(**raw)), torch.randint(0, 258, (3, 20)), {}
            for order in ([0, 1, 2], [2, 0, 1], [1, 1, 2], [0, 0, 0], [0, 1, 2]):
                ids = ids[order]
                outputs = model(**model.prepare_inputs_for_generation(ids, **kept))
                kept = model._update_model_kwargs_for_generation(outputs, kept)
                torch.testing.assert_close(outputs.logits[:, -1], model.decoder(ids)[:, -1], rtol=0, atol=3e-5)
                ids = torch.cat((ids, torch.randint(0, 258, (3, 1))), 1)
            with self.assertRaisesRegex(ValueError, "^input_ids: a sequence does not begin"):
                model.prepare_inputs_for_generation(ids + 1, **kept)

    @unittest.skipIf(missing("transformers"), "needs transformers")
    def test_with_transformers(self):
        import ovq_torch
        import transformers
        config = ovq_torch.OvqConfig(**support.tiny_config())
        model = ovq_torch.OvqForCausalLM(config)
        self.check(config, model)
        tokens = torch.randint(0, 258, (1, 30))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model.save_pretrained(folder)
            again = ovq_torch.OvqForCausalLM.from_pretrained(folder)
            torch.testing.assert_close(again(tokens).logits, model(tokens).logits)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model.save_native(folder, shard_bytes=9000)
            again = transformers.AutoModelForCausalLM.from_pretrained(folder)
            torch.testing.assert_close(again(tokens).logits, model(tokens).logits)

    @unittest.skipUnless(missing("transformers"), "transformers is installed")
    def test_without_transformers_the_error_names_it(self):
        import ovq_torch
        with self.assertRaisesRegex(ImportError, "OvqForCausalLM needs transformers"):
            ovq_torch.OvqForCausalLM
        exec("from ovq_torch import *", {})  # asks for nothing that is not there
        with self.assertRaisesRegex(AttributeError, "'OvqModel'"):
            ovq_torch.OvqModel


class ConvertTest(unittest.TestCase):
    def convert(self, *arguments):
        shown = io.StringIO()
        with mock.patch.object(sys, "argv", ["convert_full.py", *arguments]), contextlib.redirect_stdout(shown):
            convert_full.main()
        return shown.getvalue()

    def test_full_attention_becomes_dictionaries_by_a_short_leg(self):
        torch.manual_seed(8)
        raw = support.tiny_config(layer_types=["sliding_attention", "full_attention"], vocab_size=19)
        for of_text in ("tokenizer", "bos_token_id", "eos_token_id"):
            del raw[of_text]
        source = OvqModel(config_from_dict(raw))
        with tempfile.TemporaryDirectory() as folder:
            full, out = os.path.join(folder, "full"), os.path.join(folder, "ovq")
            save_model(full, source.config, source.state_dict())
            task = {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 16, "n_queries": 1}
            write_json(os.path.join(full, "task.json"), {"task": task})
            shown = self.convert("--model", full, "--out", out, "--chunk-size", "8", "--max-centroids", "12",
                                 "--length", "64", "--batch", "2", "--steps", "10")
            self.assertRegex(shown, r"step 10  loss \d.*\nright: 0\.\d+ through 12 slots before, 0\.\d+ after")
            made = load_model(out)
            self.assertEqual(made.config.layer_types, ("sliding_attention", "ovq_attention"))
            self.assertEqual((made.config.chunk_size, made.config.max_centroids), (8, 12))
            self.assertFalse(torch.equal(made.state_dict()["model.layers.1.self_attn.beta"],
                                         source.state_dict()["model.layers.1.self_attn.beta"]))
            with self.assertRaisesRegex(ValueError, r"--lr: .* is not finite behind the leg"):
                self.convert("--model", full, "--out", os.path.join(folder, "none"), "--chunk-size", "8", "--length", "64",
                             "--batch", "2", "--steps", "2", "--lr", "1e38")
            self.assertFalse(os.path.exists(os.path.join(folder, "none")))
            with self.assertRaisesRegex(ValueError, "layer_types: there is no full_attention"):
                self.convert("--model", out, "--out", full)


if __name__ == "__main__":
    unittest.main()
