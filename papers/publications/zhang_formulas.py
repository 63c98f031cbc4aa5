"""Formulas of Zhang & Abdelrahman: speed-up of the hybrid (§ 4.2), bound on gradients (app. C), memory (app. D).

Summing (C.7) over T steps and dividing by (η - Lη²/2)T bounds the mean squared gradient by
(f(w⁰) - f*) / ((η - Lη²/2)T) + Lη²KM / (η - Lη²/2). (C.6) prints η²LKM as the second term.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.engine.models.chain import LayerChain


def hybrid_speedup(pipelined: Fraction, speedup: Fraction) -> Fraction:
    """n / (n_p / s + n - n_p), with a share n_p / n of pipelined iterations that are s times as fast."""
    return 1 / (pipelined / speedup + 1 - pipelined)


def accelerators(stages: int) -> int:
    """2K + 1 for a pipeline of 2(K + 1) forward and backward stages, which is also the most that it can speed up."""
    return stages - 1


@dataclass(frozen=True)
class NoisyQuadratic:
    """f(w) = Lw²/2 from w = 0, with gradients Lw ± s of either sign at even odds, and K = 1: no stale weights at all.

    |w| never exceeds s/L where ηL <= 1, so no gradient's square exceeds M = (2s)².
    """

    rate: float
    curvature: float = 1.0
    noise: float = 1.0

    @property
    def largest_square(self) -> float:
        """M, the bound on a sample's squared gradient."""
        return (2 * self.noise) ** 2

    def mean_squared_gradient(self, steps: int) -> float:
        """(1/T) Σ E‖∇f(w^t)‖², exactly, from E w² ← (1 - ηL)² E w² + η²s²."""
        second, total = 0.0, 0.0
        for _ in range(steps):
            total += self.curvature**2 * second
            second = (1 - self.rate * self.curvature) ** 2 * second + (self.rate * self.noise) ** 2
        return total / steps

    def printed_bound(self) -> float:
        """The right-hand side of (C.6); f(w⁰) = f* here, and the first term is 0."""
        return self.rate**2 * self.curvature * self.largest_square

    def derived_bound(self) -> float:
        """Bound derived from (C.8), instead of the printed one."""
        return self.printed_bound() / (self.rate - self.curvature * self.rate**2 / 2)


_MIB = 2**20
_BYTES = 4
_PASSES = 2
"""torchsummary counts each output twice, for the forward and the backward."""
_PLAIN = (nn.Sequential, nn.ModuleList, nn.Identity)


@dataclass(frozen=True)
class ActivationCount:
    """Memory of a model.

    Attributes:
        weights: of all its parameters, in MiB.
        by_layer: number of weight layers before an output, itself included -> MiB of a sample's outputs, both passes.
    """

    weights: float
    by_layer: tuple[float, ...]

    @property
    def activations(self) -> float:
        """Activations of a sample, in MiB."""
        return sum(self.by_layer)

    def before(self, cut: int) -> float:
        """Activations of a sample, in MiB, up to the cut after `cut` weight layers."""
        return sum(self.by_layer[: cut + 1])

    def increase(self, cut: int, minibatch: int, copies: int = 0) -> float:
        """Further memory of a 4-stage pipeline, in units of what there is without one.

        Two more minibatches are in flight before the cut, and each of their activations is kept once, not twice; the
        weights are kept in `copies` more versions.
        """
        more = self.before(cut) * minibatch + copies * self.weights
        return more / (self.activations * minibatch + self.weights)


def count(chain: LayerChain, shape: tuple[int, ...]) -> ActivationCount:
    """The count for samples of this shape, on the meta device: nothing is computed.

    Args:
        chain: the model, built on the meta device.
        shape: of one input, without the batch.
    """
    found: dict[int, int] = {}
    at = 0

    def enter(module: nn.Module, _inputs: Any) -> None:
        nonlocal at
        at += isinstance(module, nn.Conv2d | nn.Linear)

    def leave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        found[at] = found.get(at, 0) + output.numel()

    for module in chain.module.modules():
        if module is not chain.module and not isinstance(module, _PLAIN):
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    chain.module.eval()
    chain.module(torch.empty(1, *shape, device="meta"))
    weights = sum(weight.numel() for weight in chain.module.parameters()) * _BYTES / _MIB
    return ActivationCount(weights, tuple(found.get(n, 0) * _BYTES * _PASSES / _MIB for n in range(at + 1)))
