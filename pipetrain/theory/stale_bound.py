"""The bound on the mean squared gradient of pipelined SGD (Zhang & Abdelrahman, app. C), and a case that breaks it.

Summing (C.7) over T steps and dividing by (η - Lη²/2)T bounds the mean squared gradient by
(f(w⁰) - f*) / ((η - Lη²/2)T) + Lη²KM / (η - Lη²/2). (C.6) prints η²LKM as the second term.
"""

from dataclasses import dataclass


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
        """What (C.8) gives in its place."""
        return self.printed_bound() / (self.rate - self.curvature * self.rate**2 / 2)
