"""Transformer-VQ's parallel form compared with the server's: a window, and a mean for each code."""

import math
import unittest

import torch

import support
from ovq.config import config_from_dict
from ovq.model import OvqModel
from ovq.transformer_vq import attend_quantized

torch.manual_seed(0)


def token_form(q, choice, codebook, v, biases, window_len, reads_far):
    """Computes one head of one sequence: softmax over the window's keys and the codes before it."""
    counts, means = [0] * len(codebook), [torch.zeros_like(v[0]) for _ in codebook]
    outs = []
    for t in range(len(q)):
        left = t - window_len - 1  # the token that leaves the window when t arrives
        if left >= 0:
            code = choice[left]
            counts[code] += 1
            means[code] = means[code] + (v[left] - means[code]) / counts[code]
        near = range(max(0, t - window_len), t + 1)
        scores = [q[t] @ codebook[choice[j]] + biases[t, t - j] for j in near]
        values = [v[j] for j in near]
        if reads_far:
            live = [code for code, count in enumerate(counts) if count]
            scores += [q[t] @ codebook[code] + math.log(counts[code]) for code in live]
            values += [means[code] for code in live]
        outs.append(torch.stack(scores).softmax(0) @ torch.stack(values))
    return torch.stack(outs)


class TransformerVqTest(unittest.TestCase):
    def test_the_softmax_of_all_keys_is_that_of_window_and_means(self):
        n_tokens, head_dim, window_len = 300, 4, 5
        for reads_far in (True, False):
            q = torch.randn(2, 2, n_tokens, head_dim).double()
            codebook = torch.randn(2, 7, head_dim).double()
            choice = torch.randint(7, (2, 2, n_tokens))
            v = torch.randn(2, 2, n_tokens, 3).double()
            biases = torch.randn(2, 2, n_tokens, window_len + 1).double()
            codes = torch.stack([torch.stack([codebook[h][choice[b, h]] for h in range(2)])
                                 for b in range(2)])
            ours = attend_quantized(q, codes, v, biases, window_len, reads_far)
            for b in range(2):
                for h in range(2):
                    expected = token_form(q[b, h], choice[b, h], codebook[h], v[b, h],
                                          biases[b, h], window_len, reads_far)
                    with self.subTest(reads_far=reads_far):
                        torch.testing.assert_close(ours[b, h], expected, atol=1e-11, rtol=1e-11)

    def model(self, **changes):
        torch.manual_seed(0)
        section = {"num_heads": 1, "head_dim": 4, "value_head_dim": 32, "codebook_size": 8,
                   "mem_len": 6}
        return OvqModel(config_from_dict(support.tiny_config(
            layer_types=["transformer_vq"] * 2, transformer_vq=section, intermediate_size=0,
            norm_bias=True, **changes)))

    def test_positions_are_added_where_pe_abs_says_so(self):
        model = self.model(pe_abs=True, pe_lam=50)
        rows = []
        hook = model.model.layers[0].register_forward_pre_hook(lambda _, x: rows.append(x[0]))
        with torch.no_grad():
            model.model.embed_positions.scale.fill_(0.5)
            model(torch.full((1, 9), 3))
        hook.remove()
        added = rows[0][0] - model.model.embed_tokens.weight[3]
        for position in (0, 1, 8):
            angles = [position * 50 ** (-i / 8) for i in range(8)]
            expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            torch.testing.assert_close(added[position], 0.5 * torch.tensor(expected), atol=1e-6,
                                       rtol=0)

    def test_the_heads_bias_is_scaled_with_its_product(self):
        plain, scaled = self.model(lm_head_bias=True), self.model(lm_head_bias=True,
                                                                  logit_scale=0.25)
        tokens = torch.randint(258, (1, 20))
        with torch.no_grad():
            plain.lm_head.bias.normal_()
            scaled.load_state_dict(plain.state_dict())
            torch.testing.assert_close(scaled(tokens), 0.25 * plain(tokens))
            self.assertNotIn("lm_head.weight", plain.state_dict())  # the head is tied

    def test_without_a_final_norm_the_head_reads_the_residual_stream(self):
        model = self.model(final_norm=False)
        self.assertFalse([name for name in model.state_dict() if name.startswith("model.norm")])
        rows = []
        hook = model.model.layers[1].register_forward_hook(lambda _, x, y: rows.append(y))
        with torch.no_grad():
            logits = model(torch.randint(258, (1, 5)))
        hook.remove()
        torch.testing.assert_close(logits, rows[0] @ model.model.embed_tokens.weight.T)


if __name__ == "__main__":
    unittest.main()
