"""The blockwise mixers against plain loops over positions, and their gradients."""

import json
import math
import os
import unittest
from unittest import mock

import torch
import torch.nn.functional as F

import support
from ovq import dictionary, mixers
from ovq.config import OvqRules, config_from_dict
from ovq.dictionary import ABLATIONS, assign_chunk, n_centroids_at, ovq_attention
from ovq.mixers import (block_sliding_attention, full_attention, quantize, sliding_attention,
                        vq_attention)
from ovq.model import OvqModel, load_model
from ovq.safetensors_io import load_safetensors
from test_golden import GOLDEN, TOLERANCE

torch.manual_seed(0)

RULES = [OvqRules(**{name: True}) for name in vars(OvqRules())]
RULES += [OvqRules(normalize_centroids=True, delta_rule=True), OvqRules(True, True, True, True)]


def random_qkv(n_tokens, batch=2, n_kv_heads=2, group=2, head_dim=4, value_dim=3):
    q = F.normalize(torch.randn(batch, n_kv_heads, group, n_tokens, head_dim).double(), dim=-1)
    k = F.normalize(torch.randn(batch, n_kv_heads, n_tokens, head_dim).double(), dim=-1)
    return 6 * q, k, torch.randn(batch, n_kv_heads, n_tokens, value_dim).double()


def naive_window(q, k, v, window_len):
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for t in range(k.shape[2]):
        begin = max(0, t - window_len + 1)
        scores = torch.einsum("bhgd,bhtd->bhgt", q[..., t, :], k[:, :, begin:t + 1])
        out[..., t, :] = torch.einsum("bhgt,bhte->bhge", scores.softmax(-1), v[:, :, begin:t + 1])
    return out


def naive_block_window(q, k, v, chunk_len, n_chunks, sink_len):
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for t in range(k.shape[2]):
        oldest = max(0, (t // chunk_len + 1 - n_chunks) * chunk_len)
        seen = [j for j in range(t + 1) if j >= oldest or j < sink_len]
        scores = torch.einsum("bhgd,bhtd->bhgt", q[..., t, :], k[:, :, seen])
        out[..., t, :] = torch.einsum("bhgt,bhte->bhge", scores.softmax(-1), v[:, :, seen])
    return out


def novelty(key, similarity, ablation):
    """Returns the scores of which the lowest become centroids."""
    if ablation != "random_assignment":
        return similarity
    return abs(math.fmod(4096 * float(key.sum()), 1))


def naive_variance(keys):
    """Returns the mean |key - mean key|^2."""
    keys = torch.stack(keys)
    return (keys - keys.mean(0)).square().sum(-1).mean()


def naive_read(q, rows, counts, rules, variance_scale=0.0):
    scores = [q @ row[0] for row in rows]
    if not rules.counts_for_rates_only:
        scores = [score + math.log(n) for score, n in zip(scores, counts)]
    if variance_scale:
        scores = [score + variance_scale * naive_variance(row[2]) for score, row in zip(scores, rows)]
    return scores, [row[1] for row in rows]


def naive_update(rows, counts, keys, values, n_new, ablation, rules, key_scale, variance_scale):
    """One head's dictionary update, literally: changes the lists in place. A row is its mean key, its
    mean value and the keys of its tokens."""
    n_old = len(rows)
    if rules.delta_rule and n_old:
        reads = [naive_read(key_scale * key, rows, counts, rules, variance_scale) for key in keys]
        values = [value - torch.stack(scores).softmax(0) @ torch.stack(old)
                  for value, (scores, old) in zip(values, reads)]
    if n_old == 0:
        order = sorted(range(1, len(keys)), key=lambda i: novelty(
            keys[i], float(keys[i] @ keys[0]), ablation))[:n_new - 1]
        target = {i: 1 + rank for rank, i in enumerate(order)}
        nearest = [0] * len(keys)
    else:
        similarity = [[float(key @ row[0]) for row in rows] for key in keys]
        nearest = [max(range(n_old), key=row.__getitem__) for row in similarity]
        order = sorted(range(len(keys)), key=lambda i: novelty(
            keys[i], max(similarity[i]), ablation))[:n_new]
        target = {i: n_old + rank for rank, i in enumerate(order)}
    assigned = [target.get(i, nearest[i]) for i in range(len(keys))]
    rows += [(torch.zeros_like(keys[0]), torch.zeros_like(values[0]), []) for _ in range(n_new)]
    counts += [0] * n_new
    for j in assigned:
        counts[j] += 1
    old = list(rows)
    for i, j in enumerate(assigned):
        rate = 1 / counts[j]
        if ablation == "constant_rate" and j < n_old:
            rate = min(0.25, 1 / assigned.count(j))
        change = values[i] if rules.delta_rule else values[i] - old[j][1]
        rows[j] = (rows[j][0] + (keys[i] - old[j][0]) * rate, rows[j][1] + change * rate, rows[j][2] + [keys[i]])
    if rules.normalize_centroids:
        for j, (key, value, of_tokens) in enumerate(rows):
            rows[j] = (key / key.norm(), value if rules.delta_rule else value / value.norm(), of_tokens)


def naive_size(position, n_tokens, max_centroids, ablation, rules):
    if rules.min_state_size:
        return min(position, max_centroids)
    if ablation == "linear_growth_blind":
        rows = math.floor(position / dictionary.LONGEST_SEQUENCE * max_centroids)
        return max(1, min(rows, position, max_centroids))
    if ablation != "linear_growth":
        return n_centroids_at(position, max_centroids)
    return max(1, math.floor(position / n_tokens * n_centroids_at(n_tokens, max_centroids)))


def naive_ovq(q, k, v, chunk_len, max_centroids, ablation="none", rules=OvqRules(),
              key_scale=None, variance_scale=0.0):
    """Computes one head of one sequence, one query for each key: q, k [n_tokens, d], v [n_tokens,
    dv]."""
    rows, counts, outs = [], [], []
    for t in range(len(k)):
        begin = t - t % chunk_len
        scores, values = naive_read(q[t], rows, counts, rules, variance_scale)
        scores += [q[t] @ k[s] for s in range(begin, t + 1)]
        values += list(v[begin:t + 1])
        outs.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        if (t + 1) % chunk_len == 0:
            n_new = naive_size(t + 1, len(k), max_centroids, ablation, rules) - len(rows)
            naive_update(rows, counts, k[begin:t + 1], v[begin:t + 1], n_new, ablation, rules,
                         key_scale, variance_scale)
    return torch.stack(outs)


# linear_growth_blind reaches its cap within the tests' sequences
@mock.patch.object(dictionary, "LONGEST_SEQUENCE", 40)
class MixersTest(unittest.TestCase):
    def test_sliding_blocks_equal_the_window(self):
        for n_tokens, window_len in ((1, 4), (4, 4), (5, 4), (23, 4), (9, 1), (6, 50)):
            q, k, v = random_qkv(n_tokens)
            expected = naive_window(q, k, v, window_len)
            torch.testing.assert_close(sliding_attention(q, k, v, window_len), expected)

    def test_queries_grow_as_in_llama_4(self):
        positions = torch.tensor([0, 998, 999, 8190, 8191, 16383, 262143, 1048575, 10000000])
        for scale, floor, factors in (
                (0.1, 8192, (1, 1, 1, 1, 1.06931472, 1.10986125, 1.34965074, 1.48598123, 1.71074259)),
                (0.3, 1000, (1, 1, 1.20794415, 1.65916741, 1.65916741, 1.84996402, 2.67164612, 3.08667779,
                             3.76313233))):  # transformers' code, in float32
            ours = mixers.query_growth(positions, scale, floor)
            torch.testing.assert_close(ours, torch.tensor(factors, dtype=torch.float64), rtol=2 ** -22, atol=0)

    def test_full_attention_is_an_endless_window(self):
        q, k, v = random_qkv(600)
        torch.testing.assert_close(full_attention(q, k, v), naive_window(q, k, v, 600))

    def test_block_windows_are_whole_chunks_and_the_first_tokens(self):
        for shape in ((23, 4, 2, 0), (23, 4, 3, 1), (30, 5, 1, 7), (41, 8, 2, 20), (3, 4, 2, 1)):
            q, k, v = random_qkv(shape[0])
            torch.testing.assert_close(block_sliding_attention(q, k, v, *shape[1:]),
                                       naive_block_window(q, k, v, *shape[1:]))

    def test_vq_attention_reads_the_nearest_codes(self):
        q, k, v = random_qkv(20)
        codebook = torch.randn(2, 5, 4).double()
        distances = (k.unsqueeze(3) - codebook[None, :, None]).square().sum(-1)
        codes = torch.stack([codebook[h][distances[:, h].argmin(-1)] for h in range(2)], dim=1)
        torch.testing.assert_close(vq_attention(q, k, v, codebook), naive_window(q, codes, v, 20))

    def test_quantized_keys_are_their_nearest_codes(self):
        keys, codebook = torch.randn(2, 3, 30, 4), torch.randn(3, 7, 4)
        nearest = (keys.unsqueeze(3) - codebook[None, :, None]).square().sum(-1).argmin(-1)
        expected = torch.stack([codebook[h][nearest[:, h]] for h in range(3)], dim=1)
        with torch.no_grad():
            self.assertTrue(torch.equal(quantize(keys, codebook), expected))
        # with gradients it is key + (code - key): float32 rounds a few times at values up to 4
        torch.testing.assert_close(quantize(keys.requires_grad_(), codebook), expected,
                                   rtol=0, atol=2e-6)

    def test_the_gradient_of_quantized_keys(self):
        keys = torch.randn(2, 3, 30, 4, dtype=torch.float64, requires_grad=True)
        codebook = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
        given = torch.randn(2, 3, 30, 4, dtype=torch.float64)
        out = quantize(keys, codebook)
        out.backward(given)
        codes = torch.zeros_like(codebook)
        for b, h, t in torch.cartesian_prod(*map(torch.arange, (2, 3, 30))).tolist():
            key, code = keys[b, h, t].detach(), out[b, h, t].detach()
            index = int((codebook[h] - code).abs().sum(-1).argmin())
            # out = key + |code - key| d with d constant, so d|code - key| is d for the code, -d for
            # the key: the code gets the gradient along d, the key the part across it
            direction = (code - key) / torch.linalg.vector_norm(code - key)
            along = (given[b, h, t] @ direction) * direction
            torch.testing.assert_close(keys.grad[b, h, t], given[b, h, t] - along)
            codes[h, index] += along
        torch.testing.assert_close(codebook.grad, codes)

    def test_ovq_equals_a_loop_over_positions(self):
        for ablation in ABLATIONS:
            for n_tokens, chunk_len, max_centroids in ((3, 4, 8), (4, 4, 8), (41, 4, 6),
                                                       (50, 4, 5), (64, 8, 100)):
                q, k, v = random_qkv(n_tokens)
                out = ovq_attention(q, k, v, chunk_len, max_centroids, ablation)
                for b, head, g in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
                    expected = naive_ovq(q[b, head, g], k[b, head], v[b, head], chunk_len,
                                         max_centroids, ablation)
                    with self.subTest(ablation=ablation, n_tokens=n_tokens):
                        torch.testing.assert_close(out[b, head, g], expected)

    def test_ovq_by_other_rules_equals_a_loop_over_positions(self):
        key_scales = torch.tensor([2.0, 5.0]).double()
        plain = {}
        for rules in (OvqRules(), *RULES):
            for n_tokens, chunk_len, max_centroids in ((4, 4, 8), (41, 4, 6), (64, 8, 100)):
                torch.manual_seed(4)
                q, k, v = random_qkv(n_tokens)
                out = ovq_attention(q, k, v, chunk_len, max_centroids, rules=rules,
                                    key_scales=key_scales)
                for b, head, g in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
                    expected = naive_ovq(q[b, head, g], k[b, head], v[b, head], chunk_len,
                                         max_centroids, rules=rules, key_scale=key_scales[head])
                    with self.subTest(rules=rules, n_tokens=n_tokens):
                        torch.testing.assert_close(out[b, head, g], expected)
                changes = (out - plain.setdefault(n_tokens, out)).abs().max().item()
                self.assertEqual(changes > 1e-3, n_tokens > 4 and rules != OvqRules(), rules)

    def test_the_variance_of_a_rows_keys_is_in_its_score(self):
        key_scales, variance_scale = (torch.tensor(x).double() for x in ([2.0, 5.0], [0.4, 1.5]))
        for rules in (OvqRules(), OvqRules(delta_rule=True), OvqRules(min_state_size=True)):
            q, k, v = random_qkv(41)
            given = {"rules": rules, "key_scales": key_scales}
            out = ovq_attention(q, k, v, 4, 6, **given, variance_scale=variance_scale)
            for b, head, g in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
                expected = naive_ovq(q[b, head, g], k[b, head], v[b, head], 4, 6, rules=rules,
                                     key_scale=key_scales[head], variance_scale=variance_scale[head])
                torch.testing.assert_close(out[b, head, g], expected)
            self.assertGreater((out - ovq_attention(q, k, v, 4, 6, **given)).abs().max().item(), 1e-2)

    def test_the_variance_is_the_second_order_of_what_the_keys_would_give(self):
        torch.manual_seed(6)
        d, beta = 64, 8.0
        q = beta * F.normalize(torch.randn(500, d).double(), dim=-1)
        keys = F.normalize(F.normalize(torch.randn(d).double(), dim=-1) + 0.1 * torch.randn(4000, d).double(), dim=-1)
        mean = keys.mean(0)
        exact = (q @ keys.T).logsumexp(-1)
        for scale, most, least in ((None, 1, 0.15), (torch.tensor([beta ** 2 / (2 * d)]), 0.02, 0)):
            bias = dictionary.row_bias(mean[None, None, None], torch.tensor([[[len(keys)]]]), scale)
            off = (exact - q @ mean - bias.squeeze()).abs().mean().item()
            self.assertLess(off, most)
            self.assertGreaterEqual(off, least)

    def test_every_ablation_changes_what_is_read(self):
        q, k, v = random_qkv(64)
        outs = [ovq_attention(q, k, v, 8, 20, ablation) for ablation in ABLATIONS]
        for i, out in enumerate(outs):
            # the first chunk reads no dictionary yet
            torch.testing.assert_close(out[..., :8, :], outs[0][..., :8, :])
            for other in outs[:i]:
                self.assertGreater((out - other).abs().max().item(), 1e-3)

    def test_only_linear_growth_knows_what_follows(self):
        qkv = random_qkv(64)
        for ablation in ABLATIONS:
            out = ovq_attention(*qkv, 8, 20, ablation)[..., :32, :]
            alone = ovq_attention(*(x[..., :32, :] for x in qkv), 8, 20, ablation)
            differs = (out - alone).abs().max().item() > 1e-3
            self.assertEqual(differs, ablation == "linear_growth", ablation)

    def test_random_assignment_is_no_order_of_similarity(self):
        torch.manual_seed(1)
        keys = F.normalize(torch.randn(1, 1, 4000, 16), dim=-1)
        centroids = keys[:, :, :1]
        assignment = assign_chunk(keys, centroids, 2000, "random_assignment")[0, 0]
        similarity = torch.matmul(keys, centroids.transpose(-1, -2))[0, 0, :, 0]
        chosen, merged = similarity[assignment > 0], similarity[assignment == 0]
        self.assertEqual(len(chosen), 2000)
        # similarities have deviation 1/4; a difference of two means of 2000 has 0.25/sqrt(1000)
        self.assertLess(abs(chosen.mean() - merged.mean()).item(), 4 * 0.25 / 1000 ** 0.5)

    def test_ties_go_to_the_lower_index(self):
        keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])[None, None]
        centroids = torch.tensor([[1.0, 0.0], [1.0, 0.0]])[None, None]
        self.assertEqual(assign_chunk(keys, centroids, 1)[0, 0].tolist(), [0, 2, 0, 0])
        self.assertEqual(assign_chunk(keys, centroids[:, :, :0], 2)[0, 0].tolist(), [0, 1, 0, 0])

    def check_gradients(self, ablation, recompute_chunks):
        """Checks gradients of the third chunk, which reads the first two only through the
        dictionary.

        The assignments are constants to the gradient, so perturbations must not change them.
        Differences of 1e-6 leave a truncation error of 1e-12 times third derivatives (6^3 from
        scores of up to 6) and a rounding error of 1e-16 / 1e-6: both far below 1e-7."""
        torch.manual_seed(2)
        inputs = [x.requires_grad_() for x in random_qkv(12, batch=1, n_kv_heads=1, group=1)]
        assign, seen = dictionary.assign_chunk, []

        def recorded(*arguments):
            seen.append((arguments[1].shape[-2], assign(*arguments)))
            return seen[-1][1]

        with mock.patch.object(dictionary, "assign_chunk", recorded):
            torch.autograd.gradcheck(
                lambda *qkv: ovq_attention(*qkv, 4, 6, ablation, recompute_chunks)[..., 8:, :],
                inputs, eps=1e-6, atol=1e-7, rtol=1e-5)
        by_size = {n_old: [made for n, made in seen if n == n_old] for n_old, _ in seen}
        self.assertEqual(len(by_size), 2)  # two updates, distinguished by the dictionary's size
        for made in by_size.values():
            self.assertGreater(len(made), 2 * sum(x.numel() for x in inputs))
            self.assertTrue(all(torch.equal(made[0], other) for other in made))

    def test_gradients_through_dictionary_updates_are_finite_differences(self):
        for ablation in ABLATIONS:
            for recompute_chunks in (False, True):
                with self.subTest(ablation=ablation, recompute_chunks=recompute_chunks):
                    self.check_gradients(ablation, recompute_chunks)

    def test_gradients_reach_the_first_chunk(self):
        q, k, v = random_qkv(12, batch=1, n_kv_heads=1, group=1)
        for x in (k, v):
            x.requires_grad_()
        ovq_attention(q, k, v, 4, 6)[..., 8:, :].sum().backward()
        for x in (k, v):
            self.assertGreater(x.grad[:, :, :4].abs().max().item(), 0)

    def test_recomputed_chunks_give_the_same_bits(self):
        for ablation in ABLATIONS:
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                results = []
                for recompute_chunks in (False, True):
                    torch.manual_seed(3)
                    inputs = [x.to(dtype).requires_grad_() for x in random_qkv(41)]
                    out = ovq_attention(*inputs, 8, 12, ablation, recompute_chunks)
                    out.square().sum().backward()
                    results.append((out, *(x.grad for x in inputs)))
                for kept, again in zip(*results):
                    self.assertTrue(torch.equal(kept, again), f"{ablation} {dtype}")


class ModelTest(unittest.TestCase):
    def test_a_sequence_does_not_depend_on_its_batch_or_its_future(self):
        model = OvqModel(config_from_dict(support.tiny_config())).double()
        model.compute_dtype = torch.float64
        tokens = torch.randint(0, 258, (3, 50))
        logits = model(tokens)
        torch.testing.assert_close(model(tokens[1:2, :37]), logits[1:2, :37])

    def test_a_token_shift_moves_channels_towards_those_of_the_token_before(self):
        model = OvqModel(config_from_dict(support.tiny_config(token_shift=True))).double()
        attention = model.model.layers[1].self_attn
        x = torch.randn(2, 5, 16).double()
        mixes = [torch.rand_like(mix) for mix in (attention.q_shift, attention.k_shift, attention.v_shift)]
        with torch.no_grad():
            for own, mix in zip((attention.q_shift, attention.k_shift, attention.v_shift), mixes):
                own.copy_(mix)
            heads = attention._heads(x, None)
            for part, mix, projection in zip(heads, mixes, (attention.q_proj, attention.k_proj,
                                                            attention.v_proj)):
                for t in range(5):
                    at, before = (projection(x[:, i]) for i in (t, max(0, t - 1)))
                    expected = (at * (1 - mix) + before * mix).unflatten(-1, (2, 8))
                    got = part[:, :, t]
                    if projection is not attention.v_proj:
                        expected, got = F.normalize(expected, dim=-1), F.normalize(got, dim=-1)
                    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(  # the initial value of a codebook
                F.normalize(attention.keys(x).unflatten(-1, (2, 8)), dim=-1),
                F.normalize(heads[1].transpose(1, 2), dim=-1))

    def test_training_options_without_ablation_leave_the_golden_logits(self):
        folder = os.path.join(GOLDEN, "sw-ovq")
        served = load_model(folder)
        model = OvqModel(served.config, torch.float32, "none", recompute_chunks=True)
        model.load_state_dict(served.state_dict())
        expected = load_safetensors(os.path.join(folder, "expected.safetensors"))
        with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
            sequences = json.load(file)["sequences"]
        longest = max(range(len(sequences)), key=lambda i: len(sequences[i]))
        tokens, expected = torch.tensor([sequences[longest]]), expected[f"logits.{longest}"]
        logits = model(tokens)
        self.assertTrue(torch.equal(logits, served(tokens)))
        self.assertLess((logits[0] - expected).abs().max().item(), TOLERANCE)
        for ablation in ABLATIONS[1:]:
            ablated = OvqModel(served.config, torch.float32, ablation)
            ablated.load_state_dict(served.state_dict())
            error = (ablated(tokens)[0] - expected).abs().max().item()
            self.assertGreater(error, 100 * TOLERANCE, ablation)

    def test_bfloat16_products_stay_close(self):
        config = config_from_dict(support.tiny_config())
        exact, rounded = OvqModel(config), OvqModel(config, torch.bfloat16)
        rounded.load_state_dict(exact.state_dict())
        tokens = torch.randint(0, 258, (2, 40))
        loss = [F.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten()).item()
                for m in (exact, rounded)]
        self.assertAlmostEqual(loss[0], loss[1], delta=0.02)

    def test_max_centroids_is_checked(self):
        model = OvqModel(config_from_dict(support.tiny_config()))
        with self.assertRaisesRegex(ValueError, "ovq.max_centroids"):
            model(torch.zeros(1, 4, dtype=torch.int64), max_centroids=0)


if __name__ == "__main__":
    unittest.main()
