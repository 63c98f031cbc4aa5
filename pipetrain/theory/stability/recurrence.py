"""The quadratic model's weights, step by step: what the polynomials must agree with."""

import numpy as np

from pipetrain.theory.stability.limits import Floats
from pipetrain.theory.stability.quadratic import GradientTerm, Quadratic

STEPS = 10_000
"""Enough to tell growth from decay a part in 1,000 beside the limit, for delays up to a hundred."""


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
    """How many δ T2 takes off the weights that are read."""
    return model.tau_forward - read.tau if read.corrected else 0


def decays(model: Quadratic, alphas: Floats, steps: int) -> list[bool]:
    """For each step size, whether the weights move less in the last quarter of `steps` noiseless steps than before it.

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
