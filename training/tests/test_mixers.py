"""The blockwise mixers against plain loops over positions, and their gradients."""

import math
import unittest

import torch
import torch.nn.functional as F

import support  # noqa: F401  (the import path)
from ovq.config import config_from_dict
from ovq.dictionary import assign_chunk, n_centroids_at, ovq_attention
from ovq.mixers import full_attention, sliding_attention, vq_attention
from ovq.model import OvqModel

torch.manual_seed(0)


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


def naive_update(rows, counts, keys, values, n_new):
    """One head's dictionary update, literally: lists in, lists changed in place."""
    n_old = len(rows)
    if n_old == 0:
        order = sorted(range(1, len(keys)), key=lambda i: float(keys[i] @ keys[0]))[:n_new - 1]
        target = {i: 1 + rank for rank, i in enumerate(order)}
        nearest = [0] * len(keys)
    else:
        similarity = [[float(key @ row[0]) for row in rows] for key in keys]
        nearest = [max(range(n_old), key=row.__getitem__) for row in similarity]
        order = sorted(range(len(keys)), key=lambda i: max(similarity[i]))[:n_new]
        target = {i: n_old + rank for rank, i in enumerate(order)}
    assigned = [target.get(i, nearest[i]) for i in range(len(keys))]
    rows += [(torch.zeros_like(keys[0]), torch.zeros_like(values[0])) for _ in range(n_new)]
    counts += [0] * n_new
    for j in assigned:
        counts[j] += 1
    old = list(rows)
    for i, j in enumerate(assigned):
        rows[j] = (rows[j][0] + (keys[i] - old[j][0]) / counts[j],
                   rows[j][1] + (values[i] - old[j][1]) / counts[j])


def naive_ovq(q, k, v, chunk_len, max_centroids):
    """One sequence, one head, one query per key: q, k [n_tokens, d], v [n_tokens, dv]."""
    rows, counts, outs = [], [], []
    for t in range(len(k)):
        begin = t - t % chunk_len
        scores = [q[t] @ row[0] + math.log(n) for row, n in zip(rows, counts)]
        scores += [q[t] @ k[s] for s in range(begin, t + 1)]
        values = [row[1] for row in rows] + list(v[begin:t + 1])
        outs.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        if (t + 1) % chunk_len == 0:
            n_new = n_centroids_at(t + 1, max_centroids) - len(rows)
            naive_update(rows, counts, k[begin:t + 1], v[begin:t + 1], n_new)
    return torch.stack(outs)


class MixersTest(unittest.TestCase):
    def test_sliding_blocks_equal_the_window(self):
        for n_tokens, window_len in ((1, 4), (4, 4), (5, 4), (23, 4), (9, 1), (6, 50)):
            q, k, v = random_qkv(n_tokens)
            expected = naive_window(q, k, v, window_len)
            torch.testing.assert_close(sliding_attention(q, k, v, window_len), expected)

    def test_full_attention_is_an_endless_window(self):
        q, k, v = random_qkv(600)
        torch.testing.assert_close(full_attention(q, k, v), naive_window(q, k, v, 600))

    def test_vq_attention_reads_the_nearest_codes(self):
        q, k, v = random_qkv(20)
        codebook = torch.randn(2, 5, 4).double()
        distances = (k.unsqueeze(3) - codebook[None, :, None]).square().sum(-1)
        codes = torch.stack([codebook[h][distances[:, h].argmin(-1)] for h in range(2)], dim=1)
        torch.testing.assert_close(vq_attention(q, k, v, codebook), naive_window(q, codes, v, 20))

    def test_ovq_equals_a_loop_over_positions(self):
        for n_tokens, chunk_len, max_centroids in ((3, 4, 8), (4, 4, 8), (41, 4, 6), (64, 8, 100)):
            q, k, v = random_qkv(n_tokens)
            out = ovq_attention(q, k, v, chunk_len, max_centroids)
            for b in range(2):
                for head in range(2):
                    for g in range(2):
                        expected = naive_ovq(q[b, head, g], k[b, head], v[b, head], chunk_len,
                                             max_centroids)
                        torch.testing.assert_close(out[b, head, g], expected)

    def test_ties_go_to_the_lower_index(self):
        keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])[None, None]
        centroids = torch.tensor([[1.0, 0.0], [1.0, 0.0]])[None, None]
        self.assertEqual(assign_chunk(keys, centroids, 1)[0, 0].tolist(), [0, 2, 0, 0])
        self.assertEqual(assign_chunk(keys, centroids[:, :, :0], 2)[0, 0].tolist(), [0, 1, 0, 0])

    def test_gradients_flow_through_dictionary_updates(self):
        q, k, v = random_qkv(12, batch=1, n_kv_heads=1, group=1)
        for x in (q, k, v):
            x.requires_grad_()
        # the last chunk reads the first two only through the dictionary
        torch.autograd.gradcheck(lambda *qkv: ovq_attention(*qkv, 4, 6)[..., 8:, :], (q, k, v),
                                 eps=1e-7, atol=1e-5)
        ovq_attention(q, k, v, 4, 6)[..., 8:, :].sum().backward()
        self.assertGreater(k.grad[:, :, :4].abs().min().item(), 0)


class ModelTest(unittest.TestCase):
    def test_a_sequence_does_not_depend_on_its_batch_or_its_future(self):
        model = OvqModel(config_from_dict(support.tiny_config())).double()
        model.compute_dtype = torch.float64
        tokens = torch.randint(0, 258, (3, 50))
        logits = model(tokens)
        torch.testing.assert_close(model(tokens[1:2, :37]), logits[1:2, :37])

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
