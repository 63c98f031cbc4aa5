"""Linear regression by pipeline-parallel SGD: lemma 1 on data, as in PipeMare's fig. 5(b)."""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipetrain.errors import ConfigError
from pipetrain.theory.stability.limits import Floats

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
    """Losses after w_{t+1} = w_t - α ∇f_t(w_{t-τ}), all delays and step sizes at once: shape (taus, alphas).

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
