"""Muon: updates a matrix by its momentum with all singular values made equal.

K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). The scale of an
update, which lets matrices share AdamW's learning rate, is that of "Muon is scalable for LLM
training" (arXiv 2502.16982)."""

import torch

_MOMENTUM = 0.95
_STEP_RMS = 0.2  # root mean square of an update's elements, about that of AdamW
_ITERATIONS = 5
# of the quintic iteration that moves singular values towards 1
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrices, dtype=torch.float32):
    """For matrices [n, rows, columns] = U S V^T returns U V^T, with singular values in 0.7 to 1.2.

    dtype: of the products, as published bfloat16 where that is faster."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = (x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)).to(dtype)
    # On a CPU one product after another is twice as fast as a batch of them.
    x = torch.stack([_iterate(one, torch.addmm) for one in x]) if x.device.type == "cpu" else _iterate(x, torch.baddbmm)
    return (x.transpose(1, 2) if tall else x).to(matrices.dtype)


def _iterate(x, add_product):
    """x -> a x + (b S + c S^2) x with S = x x^T, _ITERATIONS times; add_product: torch.addmm, or baddbmm for a batch."""
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = x @ x.transpose(-1, -2)
        square = add_product(square, square, square, beta=b, alpha=c)
        x = add_product(x, square, x, beta=a)
    return x


class Muon(torch.optim.AdamW):
    """AdamW, except for matrices in groups whose `orthogonal` is true, with products of product_dtype."""

    def __init__(self, groups, product_dtype=torch.float32, **options):
        super().__init__(groups, **options)
        self._product_dtype = product_dtype
        for group in self.param_groups:
            group.setdefault("orthogonal", False)

    def __setstate__(self, state):  # AdamW's own expects AdamW's state of every parameter
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self):
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        super().step()
        self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                self._step_matrices(group)

    def _step_matrices(self, group):
        by_shape = {}  # matrices of one shape are batched, because they are small
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, parameters in by_shape.items():
            wanted = []
            for parameter in parameters:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(_MOMENTUM).add_(parameter.grad)
                wanted.append(parameter.grad + _MOMENTUM * momentum)
            steps = orthogonal(torch.stack(wanted), self._product_dtype) * (_STEP_RMS * max(shape) ** 0.5)
            for parameter, step in zip(parameters, steps):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * step)
