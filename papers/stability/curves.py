"""Curves of PipeMare's figs 5, 6, 10 and 16, in the settings of their captions (λ = 1); the regression of fig. 5(b)."""

import gzip
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from papers.stability.limits import Floats, largest_stable_step, spectral_radii, weights
from papers.stability.quadratic import Quadratic, gamma_of_decay, matched_gamma
from pipetrain.engine.errors import ConfigError

BATCH = 64


@dataclass(frozen=True)
class Regression:
    """f(w) = Σ (xᵀw - y)² / 2n over n samples.

    Attributes:
        inputs: shape (samples, features), each feature of mean 0 and variance 1.
        targets: shape (samples,), of mean 0.
    """

    inputs: Floats
    targets: Floats

    @cached_property
    def largest_curvature(self) -> float:
        """The largest eigenvalue of the second derivative of f."""
        return float(np.linalg.eigvalsh(self.inputs.T @ self.inputs / len(self.inputs))[-1])

    @cached_property
    def least_loss(self) -> float:
        """f at its minimum."""
        best: Floats = np.asarray(np.linalg.lstsq(self.inputs, self.targets, rcond=None)[0], dtype=np.float64)
        return float(self.losses(best))

    def losses(self, weights: Floats) -> Floats:
        """f of weights of shape (…, features), inf where they overflowed: shape (…)."""
        with np.errstate(over="ignore", invalid="ignore"):
            residuals = weights @ self.inputs.T - self.targets
            losses = np.square(residuals).mean(axis=-1) / 2
        return np.where(np.isfinite(losses), losses, np.inf)


def load(path: Path) -> Regression:
    """The samples of a file in LIBSVM format, plain or gzip-compressed; a feature that never changes is left out.

    Raises:
        ConfigError: there is no such file, or a line is not `target index:value …`.
    """
    targets, rows = _parse(path)
    inputs = np.zeros((len(rows), max((index for row in rows for index, _ in row), default=0)))
    for sample, row in enumerate(rows):
        for index, value in row:
            inputs[sample, index - 1] = value
    varying = inputs[:, (inputs != inputs[:1]).any(axis=0)]
    if not varying.size:
        raise ConfigError(f"--data {path}: no feature that varies in {len(rows)} samples; a regression needs one")
    return Regression((varying - varying.mean(axis=0)) / varying.std(axis=0), targets - targets.mean())


def _parse(path: Path) -> tuple[Floats, list[list[tuple[int, float]]]]:
    if not path.is_file():
        raise ConfigError(f"--data {path}: no such file")
    targets: list[float] = []
    rows: list[list[tuple[int, float]]] = []
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"--data {path}: {error}; a LIBSVM file, plain or gzip-compressed, is expected") from error
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            try:
                row = [(int(index), float(value)) for index, value in (word.split(":") for word in words[1:])]
                targets.append(float(words[0]))
            except ValueError as error:
                raise ConfigError(
                    f"--data {path}, line {number}: {error}; `target index:value …` is expected"
                ) from error
            if any(index < 1 for index, _ in row):
                raise ConfigError(f"--data {path}, line {number}: indices count from 1")
            rows.append(row)
    return np.array(targets), rows


def delayed_sgd(
    problem: Regression, taus: Sequence[int], alphas: Floats, steps: Iterable[int], seed: int = 0
) -> Floats:
    """Losses after w_{t+1} = w_t - α ∇f_t(w_{t-τ}), for all delays and step sizes: shape (taus, alphas).

    ∇f_t is that of a minibatch of 64 samples; the minibatches are drawn once and visited in a new order each epoch.
    `steps` counts t from 0. Weights start at 0; inf where they overflowed.
    """
    random = np.random.default_rng(seed)
    curvatures, pulls = _minibatches(problem, random)
    features = problem.inputs.shape[1]
    shape = (len(taus), len(alphas), features)
    weights, history = np.zeros(shape), np.zeros((max(taus) + 1, *shape))
    delays, rows, rate = np.array(taus), np.arange(len(taus)), alphas[None, :, None]
    order = np.arange(len(pulls))
    with np.errstate(over="ignore", invalid="ignore"):
        for t in steps:
            if t % len(order) == 0:
                random.shuffle(order)
            batch = order[t % len(order)]
            history[t % len(history)] = weights
            read = history[(t - delays) % len(history), rows]
            weights = weights - rate * (read.reshape(-1, features) @ curvatures[batch] - pulls[batch]).reshape(shape)
    return problem.losses(weights)


def _minibatches(problem: Regression, random: np.random.Generator) -> tuple[Floats, Floats]:
    """X_bᵀX_b / B and X_bᵀy_b / B of each minibatch: all that its gradient needs."""
    size = min(BATCH, len(problem.targets))
    count = len(problem.targets) // size
    chosen = random.permutation(len(problem.targets))[: count * size].reshape(count, size)
    inputs, targets = problem.inputs[chosen], problem.targets[chosen]
    return np.einsum("bsi,bsj->bij", inputs, inputs) / size, np.einsum("bsi,bs->bi", inputs, targets) / size


PRINTED, RULE = "T2 as printed", "T2 by the rule"
DELAYS_5A, ALPHA_5A = (0, 5, 7, 10), 0.2
"""The paper names τ = 10 alone; lemma 1 puts the limit between 7 and 8."""
DISCREPANCIES_6A, ALPHA_6A = (0.0, 2.0, 3.0, 5.0), 0.06
"""The paper names neither; the largest stable steps are 0.149, 0.070, 0.055 and 0.038."""
REGRESSION_TAUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Curves:
    """Lines over a common x, by name."""

    x: Floats
    lines: dict[str, Floats]


@dataclass(frozen=True)
class Heatmap:
    """Losses of a regression under delayed SGD, by delay (rows) and step size (columns).

    Attributes:
        taus, alphas: the delays and the step sizes.
        losses: after the last iteration; inf where weights overflowed.
        iterations: how many.
        largest_curvature: of the regression.
        least_loss: at its minimum.
        first_loss: at the start, w = 0.
    """

    taus: tuple[int, ...]
    alphas: Floats
    losses: Floats
    iterations: int
    largest_curvature: float
    least_loss: float
    first_loss: float

    @property
    def diverged(self) -> npt.NDArray[np.bool_]:
        """Where the loss is a thousand times that at the start, or more."""
        return np.asarray(self.losses >= 1000 * self.first_loss)

    def largest_steps(self) -> list[float]:
        """For each delay, the largest step size on the grid up to which no run diverged; 0 if there is none."""
        bounded = np.logical_and.accumulate(~self.diverged, axis=1).sum(axis=1)
        return [float(self.alphas[count - 1]) if count else 0.0 for count in bounded]


def fig5a(steps: int = 250) -> Curves:
    """Loss λw²/2 over iterations for several τ: α = 0.2, noise N(0, 1)."""
    return _noisy({f"τ = {tau}": Quadratic(tau) for tau in DELAYS_5A}, ALPHA_5A, steps)


def fig6a(steps: int = 250) -> Curves:
    """Loss over iterations for several Δ: τ_F = 10, τ_B = 6, noise N(0, 1)."""
    models = {f"Δ = {delta:g}": Quadratic(10, 6, discrepancy=delta) for delta in DISCREPANCIES_6A}
    return _noisy(models, ALPHA_6A, steps)


def _noisy(models: dict[str, Quadratic], alpha: float, steps: int) -> Curves:
    noise = np.random.default_rng(0).standard_normal(steps)
    runs = {name: weights(model, np.array([alpha]), steps, noise, 0.0)[:, 0] for name, model in models.items()}
    return Curves(np.arange(steps + 1.0), {name: w**2 / 2 for name, w in runs.items()})


def fig6b(points: int = 200) -> Curves:
    """Spectral radius over α: τ_F = 10, τ_B = 6, Δ = 5 and 0, T2 with D = 0.1."""
    model = Quadratic(10, 6, discrepancy=5.0)
    models = {"no discrepancy": replace(model, discrepancy=0.0), "discrepancy": model, **_t2(model)}
    return _radii(models, np.geomspace(1e-3, 1.0, points))


def fig16(points: int = 200) -> Curves:
    """Spectral radius over α with recomputation: Δ = 10, Φ = -5, τ_F = 10, τ_B = 1, τ_R = 4, T2 with D = 0.1."""
    recomputed = Quadratic(10, 1, 4, discrepancy=10.0, recompute_discrepancy=-5.0)
    no_recompute = replace(recomputed, recompute_discrepancy=0.0)
    models = {
        "no discrepancy": replace(no_recompute, discrepancy=0.0),
        "no recompute": no_recompute,
        "recompute": recomputed,
        **_t2(recomputed),
    }
    return _radii(models, np.geomspace(1e-3, 1.0, points))


def _t2(model: Quadratic) -> dict[str, Quadratic]:
    gamma = gamma_of_decay(0.1, model.tau_forward, model.tau_backward)
    return {PRINTED: replace(model, gamma=gamma, printed=True), RULE: replace(model, gamma=gamma)}


def _radii(models: dict[str, Quadratic], alphas: Floats) -> Curves:
    return Curves(alphas, {name: spectral_radii(model, alphas) for name, model in models.items()})


def fig10(points: int = 101) -> Curves:
    """Largest stable step over Δ in [-100, 100], denser in [-10, 10]: τ_F = 40, τ_B = 10, γ of eq. 14."""
    sensitivities = np.union1d(np.linspace(-100, 100, points), np.linspace(-10, 10, points))
    corrected = Quadratic(40, 10, gamma=matched_gamma(40, 10))
    models = {"no T2": Quadratic(40, 10), PRINTED: replace(corrected, printed=True), RULE: corrected}
    return Curves(sensitivities, {name: _limits(model, sensitivities) for name, model in models.items()})


def _limits(model: Quadratic, sensitivities: Floats) -> Floats:
    return np.array([largest_stable_step(replace(model, discrepancy=float(delta))) for delta in sensitivities])


def fig5b(problem: Regression, iterations: int, watch: Callable[[range], Iterable[int]] = iter) -> Heatmap:
    """Losses of delayed SGD over τ and α, from a thousandth of 2/λ to 2/λ with λ the largest curvature.

    `watch` wraps the range of iterations, to show how far it is.
    """
    alphas = np.geomspace(1e-3, 1.0, 49) * 2 / problem.largest_curvature
    losses = delayed_sgd(problem, REGRESSION_TAUS, alphas, watch(range(iterations)))
    at_start = float(problem.losses(np.zeros(problem.inputs.shape[1])))
    curvature, least = problem.largest_curvature, problem.least_loss
    return Heatmap(REGRESSION_TAUS, alphas, losses, iterations, curvature, least, at_start)
