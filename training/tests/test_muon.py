"""Muon's updates compared with singular value decompositions and plain AdamW."""

import unittest

import torch

import support  # noqa: F401, the import path
from muon import Muon, orthogonal


class MuonTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_singular_values_come_near_one_and_vectors_stay(self):
        for rows, columns in ((6, 6), (5, 9), (9, 5)):
            matrices = torch.randn(3, rows, columns)
            for before, after in zip(matrices, orthogonal(matrices)):
                u, _, vt = torch.linalg.svd(before, full_matrices=False)
                inner = u.T @ after @ vt.T
                values = inner.diagonal()
                # the quintic's range, except for a value so small that five iterations do not raise
                # it
                self.assertLess(values.max().item(), 1.25)
                self.assertGreater(values.sort().values[1].item(), 0.6)
                self.assertLess((inner - values.diag()).abs().max().item(), 1e-4)

    def test_products_in_bfloat16_are_the_same_to_their_rounding(self):
        matrices = torch.randn(3, 40, 64)
        exact, rounded = orthogonal(matrices), orthogonal(matrices, torch.bfloat16)
        self.assertEqual(rounded.dtype, torch.float32)
        # Rounding the input, of norm 1, errs by 2^-9, and no iteration lets an error grow by more than 3.4445; the
        # result's norm is about the root of 40.
        self.assertLess((rounded - exact).norm(), 3.4445 ** 5 * 2 ** -9)
        self.assertGreater((rounded - exact).abs().max(), 0)

    def test_a_step_has_the_size_of_adamws_and_no_memory_of_the_gradients_size(self):
        weights = []
        for scale in (1.0, 1000.0):
            torch.manual_seed(1)
            weight = torch.nn.Parameter(torch.zeros(32, 32))
            optimizer = Muon([{"params": [weight], "orthogonal": True}], lr=0.5, weight_decay=0.0)
            for _ in range(3):
                weight.grad = scale * torch.randn(32, 32)
                before = weight.detach().clone()
                optimizer.step()
            step = (weight.detach() - before) / 0.5
            self.assertLess(abs(step.square().mean().sqrt().item() / 0.2 - 1), 0.25)
            weights.append(weight.detach())
        torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-4)

    def test_it_steps_down_and_decays(self):
        weight = torch.nn.Parameter(torch.eye(4))
        optimizer = Muon([{"params": [weight], "orthogonal": True}], lr=0.1, weight_decay=0.5)
        weight.grad = torch.eye(4)
        optimizer.step()
        self.assertTrue((weight.diagonal() < 0.95).all())  # 1 - 0.1 * 0.5, and an update
        weight.grad = None
        before = weight.detach().clone()
        optimizer.step()  # without gradients nothing changes
        torch.testing.assert_close(weight.detach(), before)

    def test_all_else_has_adamw(self):
        own, plain = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
        matrix = torch.nn.Parameter(torch.ones(2, 2))
        muon = Muon([{"params": [matrix], "orthogonal": True}, {"params": [own]}], lr=0.1)
        adamw = torch.optim.AdamW([plain], lr=0.1)
        for _ in range(4):
            own.grad = torch.randn(3, 2)
            plain.grad, matrix.grad = own.grad.clone(), torch.randn(2, 2)
            muon.step()
            adamw.step()
        self.assertTrue(torch.equal(own, plain))

    def test_a_resumed_one_goes_on_as_if_it_had_not_stopped(self):
        gradients = torch.randn(4, 3, 3)
        ends = []
        for stops in (False, True):
            weight = torch.nn.Parameter(torch.ones(3, 3))
            optimizer = Muon([{"params": [weight], "orthogonal": True}], lr=0.1)
            for i, gradient in enumerate(gradients):
                if stops and i == 2:
                    saved = optimizer.state_dict()
                    optimizer = Muon([{"params": [weight], "orthogonal": True}], lr=0.1)
                    optimizer.load_state_dict(saved)
                weight.grad = gradient.clone()
                optimizer.step()
            ends.append(weight.detach())
        self.assertTrue(torch.equal(*ends))


if __name__ == "__main__":
    unittest.main()
