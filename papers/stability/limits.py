"""Largest stable step sizes: by the roots of the polynomials, and by simulating the recurrence."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial

from papers.stability.quadratic import GradientTerm, Quadratic

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Crossing:
    """A step size at which a root lies on the unit circle.

    Attributes:
        alpha: the step size.
        angle: of the root (and its conjugate), in (0, π].
    """

    alpha: float
    angle: float

    @property
    def distance(self) -> float:
        """|ω - 1| of the root."""
        return float(2 * np.sin(self.angle / 2))


def spectral_radius(model: Quadratic, alpha: float) -> float:
    """The largest magnitude of the roots: below 1 the weights stay bounded whatever the bounded noise (§ 3.1)."""
    polynomial = model.unforced() + alpha * model.forced()
    return float(np.abs(np.roots(polynomial.coef[::-1])).max())


def spectral_radii(model: Quadratic, alphas: Floats) -> Floats:
    """`spectral_radius` of each step size."""
    return np.array([spectral_radius(model, alpha) for alpha in alphas])


def largest_stable_step(model: Quadratic) -> float:
    """The supremum of the step sizes α with all smaller ones stable; 0 if there is none."""
    return first_unstable(model).alpha


def first_unstable(model: Quadratic) -> Crossing:
    """The crossing of the unit circle with which a root first leaves the disk.

    Roots move continuously with α and enter or leave the disk only at a crossing, so one spectral radius between two
    neighboring crossings decides for all step sizes between them. It is taken far from both: root finding is least
    accurate where a root is on the circle or double.
    """
    below = Crossing(0.0, 0.0)
    for above in crossings(model):
        if spectral_radius(model, (below.alpha + above.alpha) / 2) >= 1:
            return below
        below = above
    return below


def crossings(model: Quadratic) -> list[Crossing]:
    """All step sizes above 0 with a root on the unit circle, ascending.

    A root e^{iθ} needs α = -A/B real, so the imaginary part of A·conj(B) changes its sign there; at θ = π it always is.
    """
    a, b = model.unforced(), model.forced()
    on_circle = np.exp(1j * np.append(angles := _sign_changes(_sines(a, b)), np.pi))
    with np.errstate(divide="ignore", invalid="ignore"):
        alphas = (-a(on_circle) / b(on_circle)).real
    pairs = zip(alphas, [*angles, np.pi], strict=True)
    positive = [Crossing(float(alpha), float(angle)) for alpha, angle in pairs if np.isfinite(alpha) and alpha > 0]
    return sorted(positive, key=lambda crossing: crossing.alpha)


def _sines(a: Polynomial, b: Polynomial) -> Floats:
    """s_1 … s_n with Σ s_d sin(dθ) = the imaginary part of A·conj(B) at e^{iθ}."""
    count = len(a.coef)
    first = np.asarray(a.coef, dtype=np.float64)
    second = np.asarray(np.pad(b.coef, (0, count - len(b.coef))), dtype=np.float64)
    products = np.correlate(first, second, "full")
    return products[count:] - products[: count - 1][::-1]


def _sign_changes(sines: Floats) -> Floats:
    """The angles in (0, π) at which the series changes its sign, by bisection between grid points."""
    orders = np.arange(1, len(sines) + 1)

    def series(angles: Floats) -> Floats:
        return np.asarray(np.sin(np.outer(angles, orders)) @ sines, dtype=np.float64)

    grid = _grid(len(sines))
    below = series(grid) < 0
    at = np.flatnonzero(below[:-1] != below[1:])
    low, high, side = grid[at], grid[at + 1], below[at]
    for _ in range(60):
        middle = (low + high) / 2
        same = (series(middle) < 0) == side
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return (low + high) / 2


def _grid(order: int) -> Floats:
    """Angles in (0, π): there are fewer than `order` sign changes, and those of a large Δ crowd near 0."""
    even = np.linspace(0, np.pi, 24 * (order + 4))[1:-1]
    return np.union1d(np.geomspace(1e-6, even[0], 200)[:-1], even)


STEPS = 10_000
"""Enough to distinguish growth from decay within a part in 1,000 of the limit, for delays up to a hundred."""


def weights(model: Quadratic, alphas: Floats, steps: int, noise: Floats | None = None, start: float = 1.0) -> Floats:
    """w_0 … w_steps for each step size: shape (steps + 1, len(alphas)).

    Weights before w_0 equal `start`, δ and v begin at 0. `noise` is η_t, shape (steps,), the same for all step sizes.
    A run that diverges ends in infinities or NaN.
    """
    past, gamma = model.tau_forward, model.gamma
    w = np.full((past + steps + 1, len(alphas)), start)
    delta = np.zeros_like(w)
    velocity = np.zeros(len(alphas))
    reads = [(read.factor, read.tau, _extrapolation(model, read), model.lag(read)) for read in model.reads()]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for t in range(past, past + steps):
            gradient = -noise[t - past] if noise is not None else 0.0
            for factor, tau, extrapolation, lag in reads:
                gradient = gradient + factor * (
                    w[t - tau] - extrapolation * delta[t - lag] if extrapolation else w[t - tau]
                )
            velocity = model.momentum * velocity - alphas * gradient
            w[t + 1] = w[t] + velocity
            if gamma is not None:
                delta[t + 1] = gamma * delta[t] + (1 - gamma) * velocity
    return w[past:]


def _extrapolation(model: Quadratic, read: GradientTerm) -> int:
    """Number of δ that T2 subtracts from the weights that are read."""
    return model.tau_forward - read.tau if read.corrected else 0


def decays(model: Quadratic, alphas: Floats, steps: int) -> list[bool]:
    """For each step size, True if the weights move less in the last quarter of `steps` noiseless steps than before it.

    Movements, not weights: small steps leave a part that decays slowly, and it would hide one that slowly grows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moves = np.abs(np.diff(weights(model, alphas, steps), axis=0))
    before, after = moves[steps // 2 : 3 * steps // 4].max(axis=0), moves[3 * steps // 4 :].max(axis=0)
    # what is left at the bottom of the range of floats is rounding
    return [bool(late < early or late < 1e-290) for early, late in zip(before, after, strict=True)]


def simulated_limit(model: Quadratic, steps: int = STEPS) -> float:
    """The largest stable step size as simulated, without any polynomial: refined to a part in 4,000.

    `steps` must be many times the delays: near the limit weights grow or decay slowly.
    """
    alphas = np.geomspace(1e-8, 8, 97) / model.curvature
    low = 0.0
    for _ in range(3):
        stable = decays(model, alphas, steps)
        first = stable.index(False) if False in stable else len(stable) - 1
        low = float(alphas[first - 1]) if first else low
        alphas = np.linspace(low, alphas[first], 33)[1:]
    return low
