"""Shares of rows by layer: the choice, what is measured, what is written."""

import contextlib
import io
import itertools
import json
import os
import tempfile
import unittest

import numpy as np
import torch

import shares
import support
from export import export
from ovq.config import config_from_dict, config_to_dict, load_config
from ovq.model import OvqModel, load_model
from tasks import make_task

TASK = {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 60, "n_queries": 2}


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


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = os.path.join(folder.name, "model")
        torch.manual_seed(1)
        config = config_from_dict(support.tiny_config(
            layer_types=["ovq_attention", "ovq_attention"]))
        checkpoint = os.path.join(folder.name, "checkpoint.pt")
        torch.save({"config": config_to_dict(config), "model": OvqModel(config).state_dict(),
                    "task": TASK}, checkpoint)
        export(checkpoint, self.model, "float32", overwrite=True)

    def test_one_layer_is_bounded_at_a_time(self):
        model = load_model(self.model)
        made = make_task(TASK).sequences(80, 2, np.random.default_rng(0))
        exact, curves = shares.measure(model, made, 16, "paper")
        self.assertEqual(len(curves), 2)
        self.assertAlmostEqual(exact, self.bits(made, "full_attention", "full_attention"), places=5)
        for share in (0.5, 1.0, 2.0):
            for layer, kinds in enumerate((("ovq_attention", "full_attention"),
                                           ("full_attention", "ovq_attention"))):
                self.assertAlmostEqual(curves[layer][share], places=5, second=self.bits(
                    made, *kinds, max_centroids=int(16 * share)))

    def bits(self, made, *layer_types, max_centroids=16):
        """Of the same weights as a model of other layers."""
        raw = config_to_dict(load_config(self.model))
        raw["layer_types"] = list(layer_types)
        raw["ovq"] = {"chunk_size": 8}
        model = OvqModel(config_from_dict(raw))
        model.load_state_dict(load_model(self.model).state_dict())
        return shares.bits_per_token(model, made, max_centroids)

    def test_the_config_gets_what_is_printed(self):
        before = load_config(self.model)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = shares.main(["--model", self.model, "--length", "80", "--centroids", "16",
                                  "--sequences", "2", "--write"])
        self.assertEqual(status, 0)
        after = load_config(self.model)
        self.assertEqual(sum(after.shares), 2)
        for layer, share in enumerate(after.shares):
            self.assertIn(f"layer {layer}: share {share:g};", output.getvalue())
        with open(os.path.join(self.model, "config.json"), encoding="utf-8") as file:
            raw = json.load(file)
        del raw["ovq"]["shares"]
        self.assertEqual(config_from_dict(raw), before)


if __name__ == "__main__":
    unittest.main()
