"""The chunked forms of the recurrent mixers compared with their token forms, and their gradients.
"""

import math
import unittest
from unittest import mock

import torch
import torch.nn.functional as F

import support
from ovq import fused
from ovq.config import config_from_dict
from ovq.gated_delta_net import gated_delta_rule
from ovq.layers import ShortConvolution, decay_parameters, half_lives, softplus
from ovq.mamba2 import selective_scan
from ovq.mesa_net import MesaSolve, key_products, mesa_attention
from ovq.model import OvqModel

LENGTHS = (1, 31, 32, 33, 64, 65, 150)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def unit_vectors(*shape):
    return F.normalize(random(*shape), dim=-1)


def decays(*shape):
    """Returns logarithms of decays with half lives from one token to hundreds."""
    return -torch.exp(2 * random(*shape) - 2)


def token_gated_delta_rule(q, k, v, beta, log_alpha):
    state, outs = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=q.dtype), []
    for t in range(q.shape[2]):
        state = log_alpha[:, :, t, None, None].exp() * state
        error = v[:, :, t] - torch.einsum("bhde,bhd->bhe", state, k[:, :, t])
        state = state + torch.einsum("bhd,bhe->bhde", k[:, :, t], beta[:, :, t, None] * error)
        outs.append(torch.einsum("bhde,bhd->bhe", state, q[:, :, t]))
    return torch.stack(outs, dim=2)


def token_scan(x, b, c, log_decay):
    n_shared = x.shape[1] // b.shape[1]
    state, outs = torch.zeros(*x.shape[:2], x.shape[-1], b.shape[-1], dtype=x.dtype), []
    for t in range(x.shape[2]):
        heads = [h // n_shared for h in range(x.shape[1])]
        state = log_decay[:, :, t, None, None].exp() * state + torch.einsum(
            "bhp,bhn->bhpn", x[:, :, t], b[:, heads, t])
        outs.append(torch.einsum("bhpn,bhn->bhp", state, c[:, heads, t]))
    return torch.stack(outs, dim=2)


def token_mesa(q, k, v, beta, log_gamma, ridge, n_steps):
    """Loops over single tokens, heads and sequences, with the published iteration."""
    outs = torch.empty_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            products = torch.zeros(q.shape[-1], q.shape[-1], dtype=q.dtype)
            readout = torch.zeros(q.shape[-1], v.shape[-1], dtype=q.dtype)
            for t in range(q.shape[2]):
                gamma, key = log_gamma[b, h, t].exp(), k[b, h, t]
                products = gamma * products + beta[b, h, t] * torch.outer(key, key)
                readout = gamma * readout + beta[b, h, t] * torch.outer(key, v[b, h, t])
                matrix = products + torch.diag(ridge[h])
                outs[b, h, t] = readout.T @ token_solve(matrix, q[b, h, t], n_steps)
    return outs


def token_solve(matrix, q, n_steps):
    u, r, p, error = torch.zeros_like(q), q, q, q @ q
    for _ in range(n_steps):
        product = matrix @ p
        rate = error / (p @ product + 1e-5)
        u, r = u + rate * p, r - rate * product
        p = r + (r @ r) / (error + 1e-5) * p
        error = r @ r
    return u


class ChunkFormTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def check(self, chunk_form, token_form, *inputs):
        """Compares results and gradients; float64 rounds to about 1e-15 of sums over at most 150
        tokens."""
        for x in inputs:
            x.requires_grad_()
        results = [form(*inputs) for form in (chunk_form, token_form)]
        torch.testing.assert_close(*results, atol=1e-11, rtol=1e-11)
        weights = torch.randn_like(results[0])
        gradients = zip(*(torch.autograd.grad(result, inputs, weights) for result in results))
        for ours, theirs in gradients:
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)

    def test_gated_delta_rule(self):
        for n_tokens in LENGTHS:
            with self.subTest(n_tokens=n_tokens):
                self.check(lambda *inputs: gated_delta_rule(*inputs)[0], token_gated_delta_rule,
                           unit_vectors(2, 3, n_tokens, 8), unit_vectors(2, 3, n_tokens, 8),
                           random(2, 3, n_tokens, 5), 2 * torch.rand(2, 3, n_tokens).double(),
                           decays(2, 3, n_tokens))

    def test_selective_scan_in_groups(self):
        for n_tokens in LENGTHS:
            with self.subTest(n_tokens=n_tokens):
                self.check(selective_scan, token_scan, random(2, 6, n_tokens, 5),
                           random(2, 3, n_tokens, 4), random(2, 3, n_tokens, 4),
                           decays(2, 6, n_tokens))

    def test_a_decay_too_strong_for_float32_leaves_no_trace(self):
        """float32 can represent neither exp(-200) nor its inverse: only differences may be used."""
        n_tokens = 70
        log_decay = torch.full((1, 1, n_tokens), -200.0)
        x, b = torch.randn(1, 1, n_tokens, 3), torch.randn(1, 1, n_tokens, 4)
        expected = x * b.square().sum(-1, keepdim=True)
        torch.testing.assert_close(selective_scan(x, b, b, log_decay), expected)
        k, beta = F.normalize(b, dim=-1), torch.ones(1, 1, n_tokens)
        torch.testing.assert_close(gated_delta_rule(k, k, x, beta, log_decay)[0], x)


class MesaTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def inputs(self, n_tokens):
        shape = 2, 3, n_tokens
        return (unit_vectors(*shape, 6), unit_vectors(*shape, 6), random(*shape, 6),
                torch.rand(shape).double(), decays(*shape), 0.25 + torch.rand(3, 6).double())

    def test_side_by_side_iterations_equal_single_ones(self):
        for n_tokens, n_steps in ((1, 30), (31, 1), (65, 4), (100, 30)):
            with self.subTest(n_tokens=n_tokens, n_steps=n_steps):
                inputs = self.inputs(n_tokens)
                torch.testing.assert_close(mesa_attention(*inputs, n_steps),
                                           token_mesa(*inputs, n_steps), atol=1e-11, rtol=1e-11)

    def test_gradient_is_that_of_the_exact_solution(self):
        """The damped iteration stops at residuals up to 1e-3 of a unit vector, which bounds the
        accuracy."""
        inputs = [x.requires_grad_() for x in self.inputs(70)]
        ours = mesa_attention(*inputs, 60)
        q, k, v, beta, log_gamma, ridge = inputs
        sums = log_gamma.cumsum(-1)
        weights = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).tril().exp().tril() * beta.unsqueeze(-2)
        products = torch.einsum("bhij,bhjd,bhje->bhide", weights, k, k) + \
            torch.diag_embed(ridge)[None, :, None]
        readout = torch.einsum("bhij,bhjd,bhje->bhide", weights, k, v)
        solved = torch.linalg.solve(products, q.unsqueeze(-1)).squeeze(-1)
        exact = torch.einsum("bhide,bhid->bhie", readout, solved)
        torch.testing.assert_close(ours, exact, atol=5e-3, rtol=0)
        weights = torch.randn_like(ours)
        for one, other in zip(torch.autograd.grad(ours, inputs, weights),
                              torch.autograd.grad(exact, inputs, weights)):
            self.assertLess((one - other).norm() / other.norm(), 5e-3)

    def test_gradients_of_any_size_are_as_exact(self):
        """The iteration's damping suits unit vectors; losses have gradients of 1e-6."""
        q, k = unit_vectors(1, 32, 6), unit_vectors(1, 32, 6)
        operands = (k, torch.rand(1, 32, 32).double().tril(), torch.zeros(1, 6, 6).double(),
                    torch.ones(1, 32, 1).double(), torch.ones(1, 1, 6).double())
        q.requires_grad_()
        u = MesaSolve.apply(q, 30, False, *operands)
        direction = torch.randn_like(u)
        large, = torch.autograd.grad(u, q, direction, retain_graph=True)
        small, = torch.autograd.grad(u, q, 1e-7 * direction)
        torch.testing.assert_close(1e7 * small, large, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(key_products(large, *operands), direction, atol=1e-2, rtol=0)


    def test_the_compiled_iteration_is_the_plain_one(self):
        """Compares at both vector widths; in float32 up to its rounding."""
        if fused.compiled() is None:
            self.skipTest("no C++ compiler")
        for dim, n_tokens in ((16, 70), (48, 32), (64, 100)):
            shape = 2, 2, n_tokens
            inputs = [unit_vectors(*shape, dim), unit_vectors(*shape, dim), random(*shape, dim),
                      torch.rand(shape).double(), decays(*shape), torch.ones(2, dim).double()]
            plain = mesa_attention(*inputs, 30)
            for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
                with self.subTest(dim=dim, dtype=dtype):
                    ours = mesa_attention(*(x.to(dtype) for x in inputs), 30, compiled=True)
                    torch.testing.assert_close(ours.double(), plain, atol=tolerance, rtol=tolerance)


class LayerTest(unittest.TestCase):
    SECTIONS = {
        "gated_delta_net": {"gdn": {"num_heads": 2, "num_v_heads": 4, "head_dim": 4, "conv_size": 3,
                                    "value_head_dim": 6, "conv_bias": True}},
        "mamba2": {"mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 4, "n_groups": 2}},
        "mesa_net": {"mesa_net": {"num_heads": 2, "head_dim": 4, "use_output_gate": True}},
        "lattice": {"lattice": {"num_heads": 2, "num_slots": 4, "value_head_dim": 6}},
        "transformer_vq": {"transformer_vq": {"num_heads": 2, "head_dim": 4, "value_head_dim": 6,
                                              "codebook_size": 8, "mem_len": 8}},
    }

    def model(self, kind, **changes):
        torch.manual_seed(0)
        return OvqModel(config_from_dict(support.tiny_config(
            layer_types=["sliding_attention", kind], **self.SECTIONS[kind], **changes)))

    def test_convolution_ends_with_the_current_token(self):
        convolution = ShortConvolution(2, 3, bias=True)
        x = torch.randn(1, 5, 2)
        with torch.no_grad():
            y = convolution(x)
        for t in range(5):
            for c in range(2):
                taps = convolution.weight[c, 0]
                total = convolution.bias[c] + sum(
                    taps[2 - back] * x[0, t - back, c] for back in range(min(3, t + 1)))
                self.assertAlmostEqual(y[0, t, c].item(), F.silu(total).item(), places=6)

    def test_softplus_is_exact_in_float64(self):
        x = torch.tensor([-50.0, 0.0, 25.0, 39.0], dtype=torch.float64)
        torch.testing.assert_close(softplus(x), torch.log1p(x.exp()), atol=0, rtol=1e-15)

    def test_heads_start_with_their_half_lives(self):
        for n_heads in (1, 2, 5):
            lives = half_lives(n_heads).double()
            self.assertTrue((lives.diff() > 0).all())
            self.assertAlmostEqual(lives.log().mean().item(), math.log(512), places=5)
            a_log, dt_bias = (x.double() for x in decay_parameters(n_heads))
            self.assert_halved(torch.exp(-a_log.exp() * softplus(dt_bias)), lives)
        net = self.model("mesa_net").model.layers[1].self_attn
        self.assert_halved(net.a_proj.bias.double().sigmoid(),
                           half_lives(net.section.num_heads).double())

    def assert_halved(self, decay, lives):
        # Parameters are rounded to float32, and the exponent of the decay with them.
        torch.testing.assert_close(decay ** lives, torch.full_like(lives, 0.5), rtol=1e-5, atol=0)

    def test_no_token_sees_what_follows_it(self):
        for kind in self.SECTIONS:
            with self.subTest(kind=kind), torch.no_grad():
                model = self.model(kind)
                tokens = torch.randint(258, (2, 70))
                changed = tokens.clone()
                changed[:, 40:] = torch.randint(258, (2, 30))
                self.assertTrue(torch.allclose(model(tokens)[:, :40], model(changed)[:, :40],
                                               atol=1e-5))
                self.assertFalse(torch.allclose(model(tokens)[:, 40:], model(changed)[:, 40:],
                                                atol=1e-2))

    def test_every_parameter_learns(self):
        """With bfloat16 products, as in training."""
        for kind in self.SECTIONS:
            with self.subTest(kind=kind):
                model = self.model(kind)
                model.compute_dtype = torch.bfloat16
                tokens = torch.randint(258, (2, 70))
                model(tokens).log_softmax(-1).square().mean().backward()
                for name, parameter in model.named_parameters():
                    self.assertGreater(parameter.grad.abs().max().item(), 0, name)

    def test_short_convolution_and_gate_of_gdn_can_be_left_out(self):
        section = {**self.SECTIONS["gated_delta_net"]["gdn"], "use_short_conv": False,
                   "use_gate": False}
        with mock.patch.dict(self.SECTIONS, gated_delta_net={"gdn": section}):
            model = self.model("gated_delta_net")
        self.assertFalse([name for name in model.state_dict() if "conv1d" in name or "g_proj" in
                          name])
        self.assertTrue(model(torch.randint(258, (1, 40))).isfinite().all())


if __name__ == "__main__":
    unittest.main()
