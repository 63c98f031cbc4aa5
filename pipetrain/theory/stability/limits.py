"""The largest stable step size, from the roots of the characteristic polynomial A(ω) + α B(ω)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial

from pipetrain.theory.stability.quadratic import Quadratic

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
