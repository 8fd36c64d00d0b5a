"""Lattice against the paper's losses, by autograd, and against a plain loop."""

import itertools
import math
import unittest

import torch
import torch.nn.functional as F

import support
from ovq import fused
from ovq.config import ConfigError, config_from_dict
from ovq.lattice import gelu_tanh, lattice_memory, slot_step
from ovq.model import OvqModel
from ovq.sections import LatticeSection

OBJECTIVES = ("dec", "enc", "sim")


def loss(slots, k, v, objective):
    """Eqs. 6, 9 and 11, the first two halved, because slot_step omits their factor 2."""
    phi = slots / slots.square().sum(-1, keepdim=True).sqrt()
    if objective == "dec":
        return (k @ phi - v).square().sum() / 2
    if objective == "enc":
        return (phi @ v - k).square().sum() / 2
    return -(phi @ v) @ k


def naive_memory(q, k, v, rate, forget, slots, section):
    """Computes one head of one sequence; autograd gives the update."""
    slots, outs = F.normalize(slots, dim=-1), []
    for t in range(len(q)):
        place = slots.clone().requires_grad_()
        gradient, = torch.autograd.grad(loss(place, k[t], v[t], section.objective), place)
        keeps = math.exp(-forget[t]) if forget is not None and section.regularization == "l2" else 1
        slots = keeps * slots - rate[t] * gradient
        if forget is not None and section.regularization == "l1":
            slots = F.softshrink(slots, float(rate[t] * forget[t]))
        if section.normalized_projection:
            slots = F.normalize(slots, dim=-1)
        outs.append(q[t] @ slots)
    return torch.stack(outs)


class LatticeTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_steps_are_gradients_of_the_papers_losses(self):
        for objective in OBJECTIVES:
            for length in (1.0, 0.3, 4.0):
                slots = length * F.normalize(torch.randn(5, 7).double(), dim=-1)
                k, v = torch.randn(5).double(), torch.randn(7).double()
                place = slots.clone().requires_grad_()
                gradient, = torch.autograd.grad(loss(place, k, v, objective), place)
                with self.subTest(objective=objective, length=length):
                    torch.testing.assert_close(slot_step(slots, k, v, objective, False), -gradient)
                    if length == 1:
                        torch.testing.assert_close(slot_step(slots, k, v, objective, True),
                                                   -gradient)

    def memory(self, section, n_tokens=40):
        """Returns (inputs of lattice_memory without the section, its result)."""
        shape = 2, section.num_heads, n_tokens
        q, k = (F.normalize(torch.randn(*shape, section.num_slots).double(), dim=-1)
                for _ in range(2))
        v = torch.randn(*shape, section.value_head_dim).double()
        rate = torch.rand(shape).double()
        forget = 0.2 * torch.rand(shape).double() if section.use_forget_gate else None
        slots = torch.randn(section.num_heads, section.num_slots, section.value_head_dim).double()
        inputs = q, k, v, rate, forget, slots
        return inputs, lattice_memory(*inputs, section)

    def test_variants_equal_a_plain_loop(self):
        for objective, normalized, gate in itertools.product(
                OBJECTIVES, (True, False), (None, "l2", "l1")):
            section = LatticeSection(
                num_heads=2, num_slots=4, value_head_dim=6, objective=objective,
                normalized_projection=normalized, use_forget_gate=gate is not None,
                regularization=gate or "l2")
            (q, k, v, rate, forget, slots), ours = self.memory(section)
            for b, h in itertools.product(range(2), range(2)):
                one = (q[b, h], k[b, h], v[b, h], rate[b, h],
                       None if forget is None else forget[b, h], slots[h])
                with self.subTest(objective=objective, normalized=normalized, gate=gate):
                    torch.testing.assert_close(ours[b, h], naive_memory(*one, section), atol=1e-11,
                                               rtol=1e-11)

    def test_the_whole_update_writes_what_is_along_a_slot_too(self):
        slots = F.normalize(torch.randn(5, 7).double(), dim=-1)
        k, v = torch.randn(5).double(), torch.randn(7).double()
        for objective in OBJECTIVES:
            target = v - k @ slots if objective == "dec" else v
            weights = k - slots @ v if objective == "enc" else k
            step = slot_step(slots, k, v, objective, True, orthogonal=False)
            with self.subTest(objective=objective):
                torch.testing.assert_close(step, weights.outer(target))
                along = (step * slots).sum(-1, keepdim=True) * slots
                torch.testing.assert_close(step - along, slot_step(slots, k, v, objective, True))

    def test_an_ablation_of_a_layer_that_is_not_there(self):
        ovq, window = ({**support.tiny_config(), "layer_types": ["sliding_attention", kind]}
                       for kind in ("ovq_attention", "sliding_attention"))
        pairs = {**ovq, "ovq": {**ovq["ovq"], "update": "closest-pair"}}
        for config, ablation, layer in ((ovq, "whole_update", "lattice"), (ovq, "exact_keys", "transformer_vq"),
                                        (window, "linear_growth", "ovq_attention"), (pairs, "linear_growth", "ovq_attention")):
            with self.assertRaisesRegex(ConfigError, f"ablation {ablation}: expected a {layer} layer, got sliding"):
                OvqModel(config_from_dict(config), ablation=ablation)
        with self.assertRaisesRegex(ConfigError, "ablation: 'linear' is not one of 'none', "):
            OvqModel(config_from_dict(ovq), ablation="linear")

    @unittest.skipUnless(fused.compiled(), "needs a C++ compiler")
    def test_the_compiled_loop_equals_the_plain_one_and_so_do_gradients(self):
        for objective, orthogonal, gate, n_tokens in itertools.product(
                OBJECTIVES, (True, False), (True, False), (1, 2 * fused.SLOT_SEGMENT, 70)):
            section = LatticeSection(num_heads=2, num_slots=5, value_head_dim=7, objective=objective,
                                     use_forget_gate=gate)
            inputs, _ = self.memory(section, n_tokens)
            inputs = [x if x is None else x.requires_grad_() for x in inputs]
            needed = [x for x in inputs if x is not None]
            plain, ours = (lattice_memory(*inputs, section, orthogonal, compiled) for compiled in (False, True))
            direction = torch.randn_like(plain)
            with self.subTest(objective=objective, orthogonal=orthogonal, gate=gate, n_tokens=n_tokens):
                self.assertIsInstance(ours.grad_fn, fused.Slots._backward_cls)
                torch.testing.assert_close(ours, plain)
                for one, other in zip(torch.autograd.grad(ours, needed, direction),
                                      torch.autograd.grad(plain, needed, direction)):
                    torch.testing.assert_close(one, other)

    def test_a_slot_that_would_vanish_stays(self):
        section = LatticeSection(num_heads=1, num_slots=2, value_head_dim=3, regularization="l1")
        slots = torch.tensor([[[0.0, 3.0, 4.0], [1.0, 0.0, 0.0]]])
        q = torch.tensor([[[[1.0, 0.0]]]])
        k, v = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 3)
        out = lattice_memory(q, k, v, torch.ones(1, 1, 1), torch.full((1, 1, 1), 50.0), slots,
                             section)
        torch.testing.assert_close(out, torch.tensor([[[[0.0, 0.6, 0.8]]]]))

    def test_gelu_is_the_tanh_form(self):
        x = torch.linspace(-5, 5, 101).double()
        torch.testing.assert_close(gelu_tanh(x), F.gelu(x, approximate="tanh"))


if __name__ == "__main__":
    unittest.main()
