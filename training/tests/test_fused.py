"""The Functions of fused.py against plain operations and, in float64, finite differences."""

import contextlib
import os
import unittest
from unittest import mock

import torch
import torch.nn.functional as F

import support
from ovq import fused
from ovq.config import config_from_dict
from ovq.mixers import attend, ranges_up_to, rope_tables, rotate_half, unit_norm
from ovq.model import OvqModel

DIM, HEAD_DIM, VALUE_DIM = 7, 6, 3


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def plain_norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def plain_heads(qkv, beta, rope):
    """q of two heads, k and v of one."""
    q, k, v = (part.unflatten(-1, (-1, dim)) for part, dim in zip(
        qkv.split((2 * HEAD_DIM, HEAD_DIM, VALUE_DIM), -1), (HEAD_DIM, HEAD_DIM, VALUE_DIM)))
    q, k = unit_norm(q) * beta[:, None], unit_norm(k)
    if rope:
        q, k = rotate_half(q, rope), rotate_half(k, rope)
    return tuple(part.transpose(1, 2) for part in (q, k, v))


@unittest.skipUnless(fused.compiled(), "needs a C++ compiler")
class FusedTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def check(self, function, plain, *inputs):
        """Asserts equal results, and gradients equal to finite differences."""
        torch.testing.assert_close(function(*inputs), plain(*inputs))
        self.assertTrue(torch.autograd.gradcheck(function, inputs))

    def test_norm(self):
        self.check(lambda x, weight: fused.RmsNorm.apply(x, weight, 1e-5, torch.float64),
                   plain_norm, random(2, 3, DIM), random(DIM))

    def test_gate(self):
        self.check(fused.Gate.apply, lambda x: F.silu(x[..., :DIM]) * x[..., DIM:],
                   random(2, 3, 2 * DIM))

    def test_shift(self):
        def plain_shift(x, mix):
            return x + mix * (torch.cat((x[:, :1], x[:, :-1]), dim=1) - x)

        self.check(fused.Shift.apply, plain_shift, random(3, 4, DIM), random(DIM))
        self.check(fused.Shift.apply, plain_shift, random(2, 1, DIM), random(DIM))

    def test_heads(self):
        width = 3 * HEAD_DIM + VALUE_DIM
        for rope in (None, rope_tables(5, HEAD_DIM, 100.0, "cpu")):
            with self.subTest(rotated=rope is not None):
                self.check(lambda qkv, beta, rope=rope: fused.SplitHeads.apply(
                    qkv, beta, rope, 1, HEAD_DIM), lambda *inputs, rope=rope: plain_heads(
                        *inputs, rope), random(2, 5, width), random(2))

    def test_softmax(self):
        ranges = torch.tensor([[[0, 1], [0, 4]], [[1, 3], [5, 5]]], dtype=torch.int32)
        column = torch.arange(5)
        hidden = (column < ranges[0, ..., None]) | (column >= ranges[1, ..., None])
        for bias in (None, random(3, 5).detach()):
            added = 0 if bias is None else bias[:, None, None]
            self.check(lambda x, bias=bias: fused.Softmax.apply(1 * x, ranges, bias),
                       lambda x, added=added: (x + added).masked_fill(
                           hidden, float("-inf")).softmax(-1), random(3, 2, 2, 5))

    def test_large_scores_in_bfloat16(self):
        """Scores for which e^x leaves float32's range: far below the largest score, and far above
        0."""
        scores = torch.tensor([[300.0, 299.0, 0.0, -300.0, 200.0]]).bfloat16()
        out = fused.Softmax.apply(scores.clone(), ranges_up_to(5, 1, "cpu"), None)
        torch.testing.assert_close(out, scores.float().softmax(-1).bfloat16())
        gates = torch.tensor([-1000.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1000.0]).bfloat16()
        out = fused.Gate.apply(torch.cat((gates, torch.ones(7).bfloat16())))
        torch.testing.assert_close(out, F.silu(gates.float()).bfloat16(), atol=1e-30, rtol=0.01)

    def test_attention_without_it_is_the_same(self):
        q, keys, values = (torch.randn(2, 9, 8).bfloat16() for _ in range(3))
        bias = torch.randn(2, 9)
        out = attend(q, keys, values, ranges_up_to(1, 9, "cpu"), bias)
        with mock.patch.object(fused, "usable", lambda *_: False):
            plain = attend(q, keys, values, ranges_up_to(1, 9, "cpu"), bias)
        torch.testing.assert_close(out, plain, atol=0.02, rtol=0.02)

    def gradients(self, layer_types, plain, dtype):
        """Returns logits and gradients of a model with products in dtype, as one vector each."""
        config = config_from_dict(support.tiny_config(
            num_hidden_layers=len(layer_types), layer_types=layer_types, num_key_value_heads=1))
        torch.manual_seed(1)
        model = OvqModel(config, dtype)
        tokens = torch.randint(0, 258, (2, 41))
        with mock.patch.object(fused, "usable", lambda *_: False) if plain \
                else contextlib.nullcontext():
            logits = model(tokens)
            F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        return logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    def test_a_model_without_it_is_the_same(self):
        """Equal up to roundings to bfloat16, of at most 1/256, in other places.

        In float32: sums of some hundred terms in another order, and an exponential that is accurate
        to a few units in the last place of 2^-23."""
        for layer_types in (["sliding_attention", "full_attention"],
                            ["sliding_attention", "ovq_attention"]):
            for dtype, most in ((torch.bfloat16, 0.02), (torch.float32, 1e-5)):
                results = zip(*(self.gradients(layer_types, plain, dtype) for plain in (False, True)))
                for own, plain in results:
                    self.assertLess(((own - plain).norm() / plain.norm()).item(), most)
                # the gradients differ, so the Functions were used
                self.assertFalse(torch.equal(own, plain))


class CompilerTest(unittest.TestCase):
    def test_without_a_compiler_plain_operations_do(self):
        fused.compiled.cache_clear()
        self.addCleanup(fused.compiled.cache_clear)
        shown = mock.Mock()
        with mock.patch.dict(os.environ, {"CXX": "no-such-compiler"}), \
                mock.patch.object(fused.sys, "stderr", shown):
            self.assertIsNone(fused.compiled())
            self.assertFalse(fused.usable(torch.zeros(1), torch.bfloat16))
        self.assertIn("no-such-compiler", "".join(call.args[0] for call in
                                                   shown.write.call_args_list))

    @unittest.skipUnless(fused.compiled(), "needs a C++ compiler")
    def test_float32_without_gradients_is_the_reference_and_has_plain_operations(self):
        self.assertTrue(fused.usable(torch.zeros(1), torch.float32))
        self.assertFalse(fused.usable(torch.zeros(1), torch.float64))
        with torch.no_grad():
            self.assertFalse(fused.usable(torch.zeros(1), torch.float32))
            self.assertTrue(fused.usable(torch.zeros(1), torch.bfloat16))


if __name__ == "__main__":
    unittest.main()
