"""Variants of the closest-pair rule compared with their definitions over sets of tokens, and the
reader."""

import contextlib
import io
import json
import os
import tempfile
import unittest

import numpy as np
import torch

import support
import variants
from closest_pair_plain import ClosestPair
from ovq.config import config_from_dict, config_to_dict
from ovq.model import OvqModel
from ovq.safetensors_io import save_safetensors
from pool import Reader
from variants import VARIANTS, VariantReader, VariantRows

WEIGHT, CAP = 0.5, 15


def tokens_of(random, n):
    """Returns keys of unit norm and values of different sizes."""
    keys = random.standard_normal((n, 8))
    values = random.standard_normal((n, 4)) * random.uniform(0.2, 2, (n, 1))
    return keys / np.linalg.norm(keys, axis=1, keepdims=True), values


def merged(keys, values, given, variant, cap):
    """Returns the sets of tokens that remain when the cheapest pair merges repeatedly, by
    definition."""
    scale = WEIGHT / np.square(values).sum(1).mean()
    if variant == "spread":
        scale = WEIGHT * keys.var(0).sum() / values.var(0).sum()
    points, rows = np.concatenate((keys, values * scale ** 0.5), 1), [[i] for i in range(len(keys))]

    def cost(a, b):
        apart = np.square(points[a].mean(0) - points[b].mean(0)).sum()
        if variant == "ward":
            both = points[a + b]
            return sum(np.square(x - x.mean(0)).sum() * sign
                       for x, sign in ((both, 1), (points[a], -1), (points[b], -1)))
        if variant == "average":
            return np.mean([np.square(points[i] - points[j]).sum() for i in a for j in b])
        if variant == "attention":
            return apart * (0.3 / cap + given[a + b].sum()) ** 0.5
        if variant == "sizes":
            sizes = [np.square(values[row].mean(0)).sum() for row in (a, b)]
            return apart * np.mean(sizes) / np.square(values).sum(1).mean()
        return apart

    while len(rows) > cap:
        _, i, j = min((cost(a, b), i, j) for i, a in enumerate(rows) for j, b in enumerate(rows[:i]))
        rows[j] += rows.pop(i)
    return sorted(sorted(row) for row in rows)


class RowsTest(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(0)

    def _head(self, variant, n=40, cap=CAP):
        """Returns a head that has read and appended n tokens, those and its reader's queries."""
        head = VariantRows(variant, cap, WEIGHT, 1)
        keys, values = tokens_of(self.random, n)
        queries = 3 * tokens_of(self.random, 2 * n)[0]
        out = head.read(queries, keys, values)
        head.append(keys, values)
        return head, keys, values, queries, out

    def test_one_after_another_is_what_the_definition_says(self):
        for variant in set(VARIANTS) - {"rounds"}:
            with self.subTest(variant=variant):
                head, keys, values, queries, _ = self._head(variant)
                scores = queries @ keys.T
                scores[np.arange(40) > np.arange(80)[:, None] % 40] = -np.inf
                p = np.exp(scores)
                given = 0.1 * (p / p.sum(1, keepdims=True)).mean(0)
                rows = merged(keys, values, given, variant, CAP)
                self.assertEqual(sorted(head.counts), sorted(map(len, rows)))
                for name, all_tokens in (("keys", keys), ("values", values)):
                    means = np.array([all_tokens[row].mean(0) for row in rows])
                    own = getattr(head, name)
                    np.testing.assert_allclose(own[np.lexsort(own.T)], means[np.lexsort(means.T)], atol=1e-12)

    def test_reading_is_the_plain_references(self):
        for variant in ("rule", "variance"):
            head, keys, values, queries, out = self._head(variant)
            plain = ClosestPair(CAP, WEIGHT, correct_variance=variant == "variance")
            np.testing.assert_allclose(out[:40], plain.read(queries[:40], keys, values), atol=1e-12)
            plain.append(keys, values)
            more, own = tokens_of(self.random, 10), 3 * tokens_of(self.random, 10)[0]
            np.testing.assert_allclose(head.read(own, *more), plain.read(own, *more), atol=1e-12)

    def test_attention_given_fades_and_adds_up(self):
        head, *_ = self._head("attention")
        before = head._given.copy()
        self.assertAlmostEqual(before.sum(), 0.1)
        keys, values = tokens_of(self.random, 6)
        head.read(np.zeros((6, 8)), keys, values)
        self.assertTrue((head._given > 0.9 * before).all())
        # the chunk's own tokens had the rest
        self.assertLess(head._given.sum(), 0.9 * before.sum() + 0.1)

    def test_a_row_merges_again_when_no_disjoint_pair_is_left(self):
        self.assertLessEqual(max(self._head("rounds", cap=21)[0].counts), 2)
        head, keys, values, *_ = self._head("rounds", cap=16)
        self.assertEqual((len(head.keys), head.counts.sum()), (16, 40))
        self.assertGreater(max(head.counts), 2)
        np.testing.assert_allclose((head.values * head.counts[:, None]).sum(0), values.sum(0))
        # the closest pair of all is among the disjoint pairs of the first round
        head = VariantRows("rounds", 39, WEIGHT, 1)
        head.read(np.zeros((40, 8)), keys, values)
        head.append(keys, values)
        self.assertEqual(sorted(head.counts)[-1], 2)
        pair = [row for row in merged(keys, values, None, "rule", 39) if len(row) == 2][0]
        np.testing.assert_allclose(head.keys[head.counts == 2][0], keys[pair].mean(0))


class ReaderTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.model = OvqModel(config_from_dict(support.shared_out_config())).eval()
        self.tokens = torch.randint(0, 256, (50,))

    def _read(self, variant, n_rows):
        return VariantReader(self.model, variant, n_rows, 8).logits(self.tokens)

    def test_rows_for_all_are_full_attention(self):
        with torch.no_grad():
            whole = self.model(self.tokens[None])[0]
        for variant in VARIANTS:
            torch.testing.assert_close(self._read(variant, 200), whole)

    def test_the_rule_is_that_of_the_other_reader(self):
        torch.testing.assert_close(self._read("rule", 12), Reader(self.model, "shares", 12, 8).logits(self.tokens))
        self.assertFalse(torch.allclose(self._read("rule", 12), self._read("average", 12)))


class ProgramTest(unittest.TestCase):
    def test_it_prints_every_variant_and_how_far_it_is_from_the_first(self):
        torch.manual_seed(0)
        config = config_from_dict(support.tiny_config())
        model = OvqModel(config)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config_to_dict(config), file)
            with open(os.path.join(folder, "task.json"), "w", encoding="utf-8") as file:
                json.dump({"task": {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 20}}, file)
            save_safetensors(os.path.join(folder, "model.safetensors"), model.state_dict())
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                variants.main(["--model", folder, "--length", "100", "--rows", "20", "--chunk", "8",
                               "--sequences", "2", "--variants", "rule,ward"])
        lines = output.getvalue().splitlines()
        self.assertEqual([line.split(":")[0] for line in lines[1:]], ["rule", "ward"])
        self.assertIn("less rule: 0.0 +- 0.0%", lines[1])
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            variants.main(["--model", "m", "--variants", "rule,none"])


if __name__ == "__main__":
    unittest.main()
