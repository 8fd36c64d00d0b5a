"""Closest-pair rows against a plain reference and against loops over one head's candidates."""

import math
import unittest
from unittest import mock

import numpy as np
import torch

import support
from closest_pair_plain import ClosestPair
from ovq import closest_pair, fused
from ovq.closest_pair import ClosestPairRows, closest_pair_attention, n_rows_at
from ovq.config import ConfigError, PairRule, config_from_dict, config_to_dict
from ovq.dictionary import row_bias
from ovq.mixers import full_attention
from ovq.model import OvqModel
from test_mixers import naive_variance, random_qkv

CHUNK = 6


def mean_square(rows):
    return sum(float(value @ value) for _, value, _ in rows) / len(rows)


class NaiveHead:
    """Rows as (key, value, keys of its tokens), processed one token at a time."""

    def __init__(self, max_rows, rule=PairRule(), variance_scale=0.0):
        self.variance_scale = variance_scale
        self.max_rows, self.rows, self.own, self.size = max_rows, [], [], 0.0
        self.n_tokens, self.candidates = 0, []
        self.weight, self.pinned, self.recent = rule.value_weight, rule.pinned_tokens, rule.recent_tokens
        self.merge_variance = rule.merge_variance

    def read(self, query, key, value):
        self.own.append((key, value, [key]))
        read = self.rows + self.own
        scores = torch.stack([query @ k + math.log(len(keys)) + self.variance_scale * naive_variance(keys).detach()
                              for k, _, keys in read])
        return scores.softmax(0) @ torch.stack([v for _, v, _ in read])

    def step(self):
        """Processes the token after the one whose row was read last."""
        self.n_tokens += 1
        self.candidates.append(self.own[-1])
        if self.n_tokens == self.max_rows // 2 + 1:
            self.size = mean_square(self.rows + self.own)
        left = CHUNK - len(self.own)
        due = len(self.rows) + CHUNK - self.max_rows
        to_leave = len(self.rows) + len(self.own) - max(0, due - 2 * left)
        if len(self.candidates) > to_leave and due - 2 * (left + 1) <= 0:
            size = mean_square(self.apart()[1])
            if size > 2 * self.size or self.size > 2 * size:
                self.size = size
        while len(self.candidates) > to_leave:
            first, rows, last = self.apart()
            self.merge(rows)
            self.candidates = first + rows + last
        if left == 0:
            self.rows, self.own, self.candidates = self.candidates, [], list(self.candidates)

    def apart(self):
        """Returns the pinned tokens, the candidates and the newest tokens."""
        end = len(self.candidates) - self.recent
        return self.candidates[:self.pinned], self.candidates[self.pinned:end], self.candidates[end:]

    def merge(self, rows):
        def distance(one, other):
            key, value = one[0] - other[0], one[1] - other[1]
            variances = [variance for variance in map(float, map(naive_variance, (one[2], other[2]))) if variance > 1 / 16]
            return float(key @ key) + self.weight / self.size * float(value @ value) + self.merge_variance * sum(variances)

        _, i, j = min((distance(rows[i], rows[j]), i, j)
                      for i in range(len(rows)) for j in range(i + 1, len(rows)))
        (key, value, keys), (other_key, other_value, other_keys) = rows[i], rows.pop(j)
        count, other_count = len(keys), len(other_keys)
        total = count + other_count
        rows[i] = ((count * key + other_count * other_key) / total,
                   (count * value + other_count * other_value) / total, keys + other_keys)


class ClosestPairTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def read_as_the_plain_reference(self, seed, unit_keys=False, value_weight=0.5, recent=0, merge_variance=0.0):
        """Appends 120 tokens to 30 rows of both, with all merges at a chunk's end; returns (plain, ours), which are equal
        after each chunk."""
        rng = np.random.default_rng(seed)
        keys, values = rng.standard_normal((120, 12)), rng.standard_normal((120, 5))
        if unit_keys:
            keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        plain = ClosestPair(30, value_weight, recent, merge_variance=merge_variance)
        ours = ClosestPairRows(12, 5, 30, rule=PairRule(value_weight, recent_tokens=recent, merge_variance=merge_variance))
        for begin in range(0, 120, 24):
            chunk = slice(begin, begin + 24)
            plain.append(keys[chunk], values[chunk])
            ours.append(keys[chunk], values[chunk], merges_per_token=24)
            for part in ("keys", "values", "counts"):
                np.testing.assert_allclose(getattr(ours, part), getattr(plain, part), rtol=1e-12, atol=1e-12)
        return plain, ours

    def test_all_merges_at_the_end_of_a_chunk_are_the_plain_reference(self):
        with mock.patch.object(closest_pair, "SIZE_CHANGE", 1.0):
            _, rows = self.read_as_the_plain_reference(3)
        self.assertEqual(rows.counts.sum(), 120)
        self.assertGreater(rows.counts.max(), 2)

    def test_the_newest_rows_are_those_of_the_plain_reference(self):
        # without values in the distance: V is computed from all rows, also those that may not merge
        _, rows = self.read_as_the_plain_reference(4, value_weight=0, recent=8)
        self.assertTrue((rows.counts[-8:] == 1).all())

    def test_variances_in_distances_are_those_of_the_plain_reference(self):
        counts = {}
        for weight in (0, 1.5):
            plain, rows = self.read_as_the_plain_reference(7, unit_keys=True, value_weight=0, merge_variance=weight)
            self.assertGreater(plain.variances[plain.counts > 1].min(), closest_pair.LEAST_VARIANCE)
            counts[weight] = rows.counts.max()
        # one row takes in less
        self.assertLess(2 * counts[1.5], counts[0])

    def test_pinned_tokens_stay(self):
        rng = np.random.default_rng(5)
        keys, values = rng.standard_normal((96, 12)), rng.standard_normal((96, 5))
        rows = ClosestPairRows(12, 5, 30, rule=PairRule(pinned_tokens=9, recent_tokens=3))
        for begin in range(0, 96, 24):
            rows.append(keys[begin:begin + 24], values[begin:begin + 24])
        # a quarter of the rows is pinned
        np.testing.assert_array_equal(rows.keys[:7], keys[:7])
        np.testing.assert_array_equal(rows.keys[-3:], keys[-3:])
        self.assertGreater(rows.counts[7], 1)
        np.testing.assert_array_equal(rows.counts[[0, 6, -3, -1]], 1)

    def test_it_equals_loops_over_candidates(self):
        q, k, v = random_qkv(45)
        v[:, :, 24:] *= 4  # V must follow
        apart = PairRule(value_weight=0.25, pinned_tokens=2, recent_tokens=5)
        varied = PairRule(value_weight=0.1, merge_variance=1.5)
        for max_rows, rule in ((3, PairRule()), (10, PairRule()), (21, PairRule()), (10, apart),
                               (21, apart), (10, varied), (21, varied)):
            out = closest_pair_attention(q, k, v, CHUNK, max_rows, rule=rule)
            for b, head in torch.cartesian_prod(*[torch.arange(2)] * 2).tolist():
                naive, expected = NaiveHead(max_rows, rule), []
                for t in range(45):
                    expected.append(naive.read(q[b, head, 0, t], k[b, head, t], v[b, head, t]))
                    naive.step()
                with self.subTest(max_rows=max_rows, rule=rule):
                    torch.testing.assert_close(out[b, head, 0], torch.stack(expected))

    def test_the_variance_of_a_rows_keys_is_in_its_score(self):
        q, k, v = random_qkv(45)
        scale = torch.tensor([0.4, 1.5]).double()
        out = closest_pair_attention(q, k, v, CHUNK, 10, variance_scale=scale)
        for b, head in torch.cartesian_prod(*[torch.arange(2)] * 2).tolist():
            naive, expected = NaiveHead(10, variance_scale=scale[head]), []
            for t in range(45):
                expected.append(naive.read(q[b, head, 0, t], k[b, head, t], v[b, head, t]))
                naive.step()
            torch.testing.assert_close(out[b, head, 0], torch.stack(expected))
        self.assertGreater((out - closest_pair_attention(q, k, v, CHUNK, 10)).abs().max().item(), 1e-2)
        # tokens alone have no variance: nothing changes before the first merge
        torch.testing.assert_close(closest_pair_attention(q, k, v, CHUNK, 45, variance_scale=scale),
                                   full_attention(q, k, v))

    def test_the_plain_reference_has_the_same_variance(self):
        rng = np.random.default_rng(8)
        keys = rng.standard_normal((60, 12))
        keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        plain = ClosestPair(9)
        for begin in range(0, 60, 12):
            plain.append(keys[begin:begin + 12], keys[begin:begin + 12, :5])
        self.assertGreater(plain.variances.max(), 0.1)
        means, counts = (torch.from_numpy(x)[None, None] for x in (plain.keys, plain.counts))
        bias = row_bias(means, counts.long(), torch.ones(1).double()) - counts.log()
        np.testing.assert_allclose(bias.numpy()[0, 0], plain.variances, atol=1e-12)

    def test_gradients_are_those_of_loops_and_of_differences(self):
        q, k, v = (x.requires_grad_() for x in random_qkv(26))
        out = closest_pair_attention(q, k, v, CHUNK, 7)
        towards = torch.randn_like(out)
        towards[:, :, 1:] = 0  # the loops compute each group's first query
        loops = []
        for b, head in torch.cartesian_prod(*[torch.arange(2)] * 2).tolist():
            naive = NaiveHead(7)
            for t in range(26):
                read = naive.read(q[b, head, 0, t], k[b, head, t], v[b, head, t])
                loops.append((read * towards[b, head, 0, t]).sum())
                naive.step()
        for ours, theirs in zip(torch.autograd.grad((out * towards).sum(), (q, k, v)),
                                torch.autograd.grad(sum(loops), (q, k, v))):
            self.assertGreater(theirs.abs().max().item(), 0.01)
            torch.testing.assert_close(ours, theirs)
        small = [x[:1, :1].detach().requires_grad_() for x in (q, k, v)]
        self.assertTrue(torch.autograd.gradcheck(
            lambda *qkv: closest_pair_attention(*qkv, CHUNK, 7), small))

    def test_equal_rows_merge_lowest_first(self):
        keys, values = np.zeros((8, 2)), np.ones((8, 1))
        keys[[2, 5, 6], 0] = 1
        rows = ClosestPairRows(2, 1, 6)
        rows.append(keys, values)
        # after token 8 the pairs (0, 1) and (0, 3) of equal rows have merged
        np.testing.assert_array_equal(rows.counts, [3, 1, 1, 1, 1, 1])

    @unittest.skipUnless(fused.compiled(), "needs a C++ compiler")
    def test_in_c_plus_plus_it_merges_the_same(self):
        rng = np.random.default_rng(6)
        for rule in (PairRule(), PairRule(value_weight=2, pinned_tokens=3, recent_tokens=9), PairRule(0),
                     PairRule(0.25, merge_variance=1.5)):
            keys, values = rng.standard_normal((240, 12)), rng.standard_normal((240, 5))
            keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
            keys[100:140] = keys[60:100]  # equal rows, in the same order, too
            values[100:140] = values[60:100]
            plain, ours = (ClosestPairRows(12, 5, 40, rule=rule, merge=merge)
                           for merge in (closest_pair.merge_pairs, fused.merge_pairs))
            for begin in range(0, 240, 24):
                chunk = slice(begin, begin + 24)
                np.testing.assert_array_equal(ours.append(keys[chunk], values[chunk]),
                                              plain.append(keys[chunk], values[chunk]))
                np.testing.assert_array_equal(ours.counts, plain.counts)
                np.testing.assert_allclose(ours.keys, plain.keys, rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(ours.values, plain.values, rtol=1e-12, atol=1e-12)
            self.assertGreater(ours.counts.max(), 9)

    def test_up_to_its_size_it_is_full_attention(self):
        q, k, v = random_qkv(23)
        exact = full_attention(q, k, v)
        torch.testing.assert_close(closest_pair_attention(q, k, v, CHUNK, 18), exact)
        less = closest_pair_attention(q, k, v, CHUNK, 17)
        torch.testing.assert_close(less[..., :18, :], exact[..., :18, :])
        self.assertGreater((less - exact)[..., 18:, :].abs().max().item(), 1e-4)
        self.assertEqual([n_rows_at(t, CHUNK, 17) for t in (0, 5, 6, 17, 18, 99)],
                         [0, 0, 6, 12, 17, 17])

    def test_keys_without_a_norm_are_measured(self):
        rng = np.random.default_rng(4)
        keys, values = rng.standard_normal((40, 6)), rng.standard_normal((40, 3))
        known, large, scaled = (ClosestPairRows(6, 3, 12, size) for size in (None, None, 1.0))
        row_of = known.append(keys, values)
        # equal up to units
        np.testing.assert_array_equal(large.append(9 * keys, 0.1 * values), row_of)
        np.testing.assert_array_equal(large.counts, known.counts)
        self.assertFalse(np.array_equal(scaled.append(9 * keys, 0.1 * values), row_of))

    def test_a_config_chooses_it(self):
        raw = support.tiny_config(ovq={"chunk_size": 8, "max_centroids": 16,
                                       "update": "closest-pair", "value_weight": 0.25,
                                       "recent_tokens": 4, "merge_variance": 2.0, "variance": 0.5})
        config = config_from_dict(raw)
        self.assertEqual(config_to_dict(config)["ovq"], raw["ovq"])
        model = OvqModel(config)
        paper = OvqModel(config_from_dict(support.tiny_config()))
        paper.load_state_dict(model.state_dict())
        tokens = torch.randint(0, 258, (1, 60))
        served, by_paper = model(tokens).detach(), paper(tokens).detach()
        self.assertFalse(torch.allclose(served, by_paper, atol=1e-3))
        for name in ("value_weight", "recent_tokens", "merge_variance"):
            del raw["ovq"][name]
        variance = raw["ovq"].pop("variance")
        model = OvqModel(config_from_dict(raw))
        model.load_state_dict(paper.state_dict())
        self.assertFalse(torch.allclose(served, model(tokens), atol=1e-3))
        paper.read_through("closest_pair")  # as many rows as the paper's rule leaves live
        torch.testing.assert_close(paper(tokens, 22), model(tokens))  # 60 * 22 // 82 is 16
        varied = OvqModel(config_from_dict({**raw, "ovq": {**raw["ovq"], "variance": variance}}))
        varied.load_state_dict(paper.state_dict())
        self.assertFalse(torch.allclose(varied(tokens), model(tokens), atol=1e-3))
        for name, value in (("pinned_tokens", 1.5), ("recent_tokens", -1), ("value_weight", "1"), ("merge_variance", -0.5),
                            ("variance", -1), ("variance", True)):
            with self.assertRaisesRegex(ConfigError, f"ovq.{name}: "):
                config_from_dict({**raw, "ovq": {**raw["ovq"], name: value}})
        for other in ({"update": "keydiff"}, {"normalize_centroids": True}, {"counts_for_rates_only": True}):
            with self.assertRaisesRegex(ConfigError, "ovq.variance: 0.5 needs rows that are means"):
                config_from_dict({**raw, "ovq": {"variance": 0.5, **other}})
        raw["ovq"]["update"] = "closest"
        with self.assertRaisesRegex(ConfigError, "ovq.update: 'closest'"):
            config_from_dict(raw)


if __name__ == "__main__":
    unittest.main()
