"""The bounds and exact step sizes that PipeMare's lemmas 1 to 4 and their proofs give."""

import math
from collections.abc import Callable

from papers.stability.quadratic import Quadratic


def delay_limit(tau: int, curvature: float = 1.0) -> float:
    """(2/λ) sin(π/(4τ + 2)), the largest stable step of plain delayed SGD (lemma 1)."""
    return 2 / curvature * math.sin(math.pi / (4 * tau + 2))


def delay_angle(tau: int) -> float:
    """π/(2τ + 1), the angle of the root on the circle at `delay_limit`.

    As in app. B.3; the Arg(ω) printed in app. B.1 is half of it, that of 1 + iy.
    """
    return math.pi / (2 * tau + 1)


def discrepancy_bound(model: Quadratic) -> float:
    """min(2/(Δ(τ_F - τ_B)), `delay_limit` of τ_F): some step size up to it is unstable (lemma 2, for Δ > 0)."""
    gap = model.tau_forward - model.tau_backward
    return min(2 / (model.discrepancy * gap), delay_limit(model.tau_forward, model.curvature))


def discrepancy_limit(model: Quadratic) -> float:
    """The step size for which app. B.3 finds a root e^{iθ}, 0 < θ < π/(2τ_F + 1), for Δ > 0 and τ_F > τ_B.

    θ solves 1 + λ/Δ = cos((2τ_B + 1)θ/2) / cos((2τ_F + 1)θ/2), and α = 2 sin((τ_F + τ_B + 1)θ/2) sin(θ/2) /
    (λ cos((τ_F - τ_B)θ/2)).
    """
    forward, backward = model.tau_forward, model.tau_backward
    ratio = 1 + model.curvature / model.discrepancy
    theta = _bisect(
        lambda angle: math.cos((backward + 0.5) * angle) - ratio * math.cos((forward + 0.5) * angle),
        delay_angle(forward),
    )
    above = 2 * math.sin((forward + backward + 1) / 2 * theta) * math.sin(theta / 2)
    return above / (model.curvature * math.cos((forward - backward) / 2 * theta))


def momentum_bound(tau: int, curvature: float = 1.0) -> float:
    """(4/λ) sin(π/(4τ + 2)): some step size up to it is unstable, whatever β is (lemma 3)."""
    return 2 * delay_limit(tau, curvature)


def momentum_limit(tau: int, momentum: float, curvature: float = 1.0) -> float:
    """The step size for which app. B.2 finds a root on the circle, for 0 ≤ β < 1.

    θ solves (1 - β)/(1 + β) = tan(φ) tan(θ - φ) with φ = θ/(2τ + 1), and α = (2/λ) |1 - β e^{2iφ}| sin(φ).
    """
    ratio = (1 - momentum) / (1 + momentum)

    def rising(theta: float) -> float:
        phi = theta / (2 * tau + 1)
        return math.sin(phi) * math.sin(theta - phi) - ratio * math.cos(phi) * math.cos(theta - phi)

    phi = _bisect(rising, math.pi / 2) / (2 * tau + 1)
    return 2 / curvature * abs(1 - momentum * complex(math.cos(2 * phi), math.sin(2 * phi))) * math.sin(phi)


def crossing_constant(model: Quadratic) -> float:
    """C of |ω - 1| ≤ C α for every root ω on the unit circle (proof of lemma 4, app. B.4); without momentum.

    Lemma 4 wants polynomials f, g and h that stay the same as τ grows. With T2 they do not: γ and the factor τ_F - τ_B
    change with the delay. Divided by ω - γ the argument holds all the same, as |ω - 1|/|ω - γ| ≤ 2/(1 + γ) on the
    circle: each term of the gradient adds its size to C, times 1 + 2(τ_F - τ)(1 - γ)/(1 + γ) if T2 corrects it.
    """
    total = 0.0
    for read in model.reads():
        gamma = model.gamma if read.corrected and model.gamma is not None else 1.0
        total += abs(read.factor) * (1 + 2 * (model.tau_forward - read.tau) * (1 - gamma) / (1 + gamma))
    return total


def _bisect(rising: Callable[[float], float], high: float) -> float:
    """Where a function that is below 0 just above 0, and not at `high`, changes its sign."""
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
