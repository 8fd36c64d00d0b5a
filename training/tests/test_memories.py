"""The bounded memories against plain loops over one head's rows."""

import math
import unittest

import torch

import support
from ovq.closest_pair import closest_pair_attention
from ovq.config import PairRule, config_from_dict
from ovq.memories import MEMORIES, bounded_attention
from ovq.mixers import full_attention
from ovq.model import OvqModel
from test_mixers import random_qkv

CHUNK, MAX_ROWS = 5, 8
RULE = PairRule(pinned_tokens=100, recent_tokens=100)  # of 8 rows a quarter and a half


def naive_window(rows, queries):
    return rows[-MAX_ROWS:]


def naive_sinks(rows, queries):
    return rows if len(rows) <= MAX_ROWS else rows[:4] + rows[-(MAX_ROWS - 4):]


def naive_keydiff(rows, queries):
    mean = sum(key for key, _, _ in rows) / len(rows)
    by_likeness = sorted(range(len(rows)), key=lambda i: float(
        torch.cosine_similarity(rows[i][0], mean, dim=0)))
    return [rows[i] for i in sorted(by_likeness[:MAX_ROWS])]


def naive_spared_keydiff(rows, queries):
    """RULE spares the first two and the newest four rows."""
    spared = (*range(2), *range(len(rows) - 4, len(rows)))
    mean = sum(key for key, _, _ in rows) / len(rows)
    others = sorted(set(range(len(rows))) - set(spared), key=lambda i: float(
        torch.cosine_similarity(rows[i][0], mean, dim=0)))
    return rows if len(rows) <= MAX_ROWS else [rows[i] for i in sorted((*spared, *others[:MAX_ROWS - 6]))]


def naive_received(rows, queries):
    """queries: [group, CHUNK, d] of the chunk whose tokens are the last rows; those stay."""
    old, received = len(rows) - CHUNK, [0.0] * len(rows)
    for head in queries:
        for i, query in enumerate(head):
            scores = torch.stack([query @ key for key, _, _ in rows[:old + i + 1]]).softmax(0)
            for row, probability in enumerate(scores.tolist()):
                received[row] += probability
    most = sorted(range(old), key=lambda row: -received[row])[:MAX_ROWS - CHUNK]
    return [rows[i] for i in sorted(most)] + rows[old:] if len(rows) > MAX_ROWS else rows


NAIVE = {"window": naive_window, "sinks": naive_sinks, "keydiff": naive_keydiff, "received": naive_received}


def naive_attention(q, group, k, v, shrink):
    """Computes one head: q, k [n_tokens, d], v [n_tokens, dv]; group [group, n_tokens, d]: the queries of its rows."""
    rows, outs = [], []
    for t, query in enumerate(q):
        begin = t - t % CHUNK
        read = rows + [(k[s], v[s], 1) for s in range(begin, t + 1)]
        scores = torch.stack([query @ key + math.log(count) for key, _, count in read])
        outs.append(scores.softmax(0) @ torch.stack([value for _, value, _ in read]))
        if (t + 1) % CHUNK == 0:
            rows = shrink(rows + [(k[s], v[s], 1) for s in range(begin, t + 1)], group[:, begin:t + 1])
    return torch.stack(outs)


class MemoriesTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_they_equal_loops_over_rows(self):
        q, k, v = random_qkv(37)
        for memory in NAIVE:
            out = bounded_attention(q, k, v, CHUNK, MAX_ROWS, memory)
            for b, head, g in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
                expected = naive_attention(q[b, head, g], q[b, head], k[b, head], v[b, head], NAIVE[memory])
                with self.subTest(memory=memory):
                    torch.testing.assert_close(out[b, head, g], expected)

    def test_keydiff_spares_the_first_and_the_newest(self):
        q, k, v = random_qkv(37)
        out = bounded_attention(q, k, v, CHUNK, MAX_ROWS, "keydiff", rule=RULE)
        self.assertFalse(torch.equal(out, bounded_attention(q, k, v, CHUNK, MAX_ROWS, "keydiff")))
        for b, head, g in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
            torch.testing.assert_close(out[b, head, g], naive_attention(
                q[b, head, g], q[b, head], k[b, head], v[b, head], naive_spared_keydiff))

    def test_up_to_their_size_they_are_full_attention(self):
        q, k, v = random_qkv(17)
        for memory in MEMORIES:
            exact = full_attention(q, k, v)
            torch.testing.assert_close(bounded_attention(q, k, v, CHUNK, 15, memory), exact)
            less = bounded_attention(q, k, v, CHUNK, 14, memory)
            torch.testing.assert_close(less[..., :15, :], exact[..., :15, :])
            self.assertGreater((less - exact)[..., 15:, :].abs().max().item(), 1e-4, memory)

    def test_heads_have_their_shares_of_the_rows(self):
        raw = support.tiny_config()
        heads = config_from_dict(raw).num_key_value_heads
        self.assertEqual(heads, 2)

        def attention(shares, update):
            raw["ovq"] = {**raw["ovq"], "update": update, "shares": [shares]}
            torch.manual_seed(3)
            return OvqModel(config_from_dict(raw)).model.layers[-1].self_attn

        q, k, v = random_qkv(37)
        for update in ("paper", "closest-pair"):
            shared = attention([1.5, 0.5], update)
            for memory in (None, *MEMORIES):
                shared.memory = memory
                out = shared._mix(q, k, v, None, 16)
                for head, size in ((0, 24), (1, 8)):
                    alone = attention(1, update)
                    alone.memory = memory
                    torch.testing.assert_close(out[:, head], alone._mix(q, k, v, None, size)[:, head],
                                               rtol=0, atol=0)

    def test_a_model_reads_through_them(self):
        """With room for everything they do not change the logits; with little room each does,
        differently."""
        for kind in ("full_attention", "ovq_attention"):
            raw = support.tiny_config(layer_types=["sliding_attention", kind])
            model = OvqModel(config_from_dict(raw))
            tokens = torch.randint(0, 258, (1, 100))
            small = [] if kind == "full_attention" else [model(tokens, 16)]
            for memory in (*MEMORIES, "dictionary"):
                model.read_through(memory)
                small.append(model(tokens, 16).detach())
            for i, logits in enumerate(small):
                for other in small[:i]:
                    same = kind == "ovq_attention" and i == len(small) - 1 and other is small[0]
                    self.assertEqual(torch.equal(logits, other), same)
            exact = OvqModel(config_from_dict({**raw, "layer_types": [
                "sliding_attention", "full_attention"]}))
            exact.load_state_dict(model.state_dict())
            model.read_through("keydiff")
            # 96 tokens precede the last chunk; 100 * 2500 // 2600 is 96
            torch.testing.assert_close(model(tokens, 2500), exact(tokens))

    def test_closest_pairs_merge_by_the_models_own_rule(self):
        q, k, v = random_qkv(37)
        for rule in (PairRule(value_weight=4.0), PairRule(pinned_tokens=2), PairRule(recent_tokens=4), PairRule(merge_variance=1.0)):
            with self.subTest(rule=rule):
                out = bounded_attention(q, k, v, CHUNK, MAX_ROWS, "closest_pair", rule=rule)
                self.assertTrue(torch.equal(out, closest_pair_attention(q, k, v, CHUNK, MAX_ROWS, rule=rule)))
                plain = bounded_attention(q, k, v, CHUNK, MAX_ROWS, "closest_pair")
                self.assertGreater((out - plain).abs().max().item(), 1e-3)

    def test_what_cannot_be_is_named(self):
        model = OvqModel(config_from_dict(support.tiny_config(
            layer_types=["sliding_attention", "vq_attention"], vq={"codebook_size": 4})))
        with self.assertRaisesRegex(ValueError, "'window' needs full_attention or ovq_attention"):
            model.read_through("window")


if __name__ == "__main__":
    unittest.main()
