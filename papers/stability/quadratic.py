"""PipeMare's quadratic model: f(w) = λw²/2 with delayed weights, as a recurrence's characteristic polynomial."""

from collections.abc import Iterator
from dataclasses import dataclass

from numpy.polynomial import Polynomial

from pipetrain.engine.errors import ConfigError

_W = Polynomial([0.0, 1.0])


@dataclass(frozen=True)
class GradientTerm:
    """One term of the gradient: `factor` times the weights of `tau` updates ago, extrapolated by T2 if `corrected`."""

    factor: float
    tau: int
    corrected: bool


@dataclass(frozen=True)
class Quadratic:
    """The gradient g_t = (λ + Δ) w_{t-τ_F} - (Δ - Φ) u_B - Φ u_R - η_t (§ 3.2, app. D.1) and what is done with it.

    Without T2, u_B = w_{t-τ_B} and u_R = w_{t-τ_R}. With T2 (`gamma` is given) u_B = w_{t-τ_B} - (τ_F - τ_B) δ_t, u_R
    likewise, and δ_{t+1} = γ δ_t + (1 - γ)(w_{t+1} - w_t). The step is v_{t+1} = β v_t - α g_t, w_{t+1} = w_t + v_{t+1}
    (app. B.2). The paper has no polynomial for momentum with a discrepancy or T2; the one here is that of these rules.

    Attributes:
        tau_forward, tau_backward: τ_F and τ_B, in updates.
        tau_recompute: τ_R, in updates; read only with Φ other than 0.
        curvature: λ.
        discrepancy: Δ, the gradient's sensitivity to a difference between forward and backward weights; unit of λ.
        recompute_discrepancy: Φ, its sensitivity to a difference between recomputation and backward weights; unit of λ.
        momentum: β.
        gamma: γ of T2; None without T2.
        printed: whether T2 reads δ_{t-τ_B} and δ_{t-τ_R}, as the polynomials printed in app. B.4 and D.1, or δ_t, as
            § 3.2.

    Raises:
        ConfigError: a delay, the curvature, β or γ is out of its range.
    """

    tau_forward: int
    tau_backward: int = 0
    tau_recompute: int = 0
    curvature: float = 1.0
    discrepancy: float = 0.0
    recompute_discrepancy: float = 0.0
    momentum: float = 0.0
    gamma: float | None = None
    printed: bool = False

    def __post_init__(self) -> None:
        forward = self.tau_forward
        if forward < 0:
            raise ConfigError(f"tau_forward={forward}: must be 0 or more updates")
        if not 0 <= self.tau_backward <= forward:
            raise ConfigError(f"tau_backward={self.tau_backward}: must be between 0 and tau_forward={forward}")
        if self.recompute_discrepancy and not self.tau_backward <= self.tau_recompute <= forward:
            between = f"between tau_backward={self.tau_backward} and tau_forward={forward}"
            raise ConfigError(f"tau_recompute={self.tau_recompute}: must be {between}")
        if not self.curvature > 0:
            raise ConfigError(f"curvature={self.curvature:g}: must be above 0, or no step size is stable")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum:g}: must be at least 0 and below 1")
        if self.gamma is not None and not 0 <= self.gamma < 1:
            raise ConfigError(f"gamma={self.gamma:g}: must be at least 0 and below 1")

    def reads(self) -> Iterator[GradientTerm]:
        """The terms of the gradient."""
        corrected = self.gamma is not None
        yield GradientTerm(self.curvature + self.discrepancy, self.tau_forward, corrected=False)
        yield GradientTerm(self.recompute_discrepancy - self.discrepancy, self.tau_backward, corrected)
        if self.recompute_discrepancy:
            yield GradientTerm(-self.recompute_discrepancy, self.tau_recompute, corrected)

    def lag(self, read: GradientTerm) -> int:
        """Age, in updates, of the δ that T2 adds to this term."""
        return read.tau if self.printed else 0

    def unforced(self) -> Polynomial:
        """A(ω) of the characteristic polynomial A(ω) + α B(ω): what the weights do with no gradient."""
        return (_W - 1) * (self._momentum_factor() if self.momentum else _power(self._top())) * self._t2_factor()

    def forced(self) -> Polynomial:
        """B(ω) of the characteristic polynomial A(ω) + α B(ω): eq. 3, 5, 12, app. B.4 and D.1, by their settings."""
        total = Polynomial([0.0])
        for read in self.reads():
            total += read.factor * _power(self._top() - read.tau) * self._t2_factor()
            if read.corrected and self.gamma is not None:
                extrapolated = (self.tau_forward - read.tau) * (1 - self.gamma)
                total -= read.factor * extrapolated * (_W - 1) * _power(self._top() - self.lag(read))
        return total

    def _top(self) -> int:
        """The power of ω that clears all denominators."""
        return max(self.tau_forward, 1) if self.momentum else self.tau_forward

    def _momentum_factor(self) -> Polynomial:
        return (_W - self.momentum) * _power(self._top() - 1)

    def _t2_factor(self) -> Polynomial:
        return Polynomial([1.0]) if self.gamma is None else _W - self.gamma


def _power(exponent: int) -> Polynomial:
    return Polynomial([0.0] * exponent + [1.0])  # ** of Polynomial stops at 100


def matched_gamma(tau_forward: int, tau_backward: int) -> float:
    """γ = 1 - 2/(τ_F - τ_B + 1), with which Δ drops out of the printed p''(1) (app. B.4, eq. 14); needs τ_F > τ_B."""
    return 1 - 2 / (_gap(tau_forward, tau_backward) + 1)


def rule_matched_gamma(tau_forward: int, tau_backward: int) -> float:
    """γ = 1 - 2/(τ_F + τ_B + 1), with which Δ drops out of p''(1) by the rule of § 3.2; eq. 14 where τ_B = 0."""
    _gap(tau_forward, tau_backward)
    return 1 - 2 / (tau_forward + tau_backward + 1)


def gamma_of_decay(decay: float, tau_forward: int, tau_backward: int) -> float:
    """γ = D^{1/(τ_F - τ_B)} (§ 3.2, T2).

    Raises:
        ConfigError: D is not between 0 and 1, or τ_F is not above τ_B.
    """
    if not 0 <= decay < 1:
        raise ConfigError(f"decay={decay:g}: must be at least 0 and below 1; the paper uses 0.1 and 0.5")
    return float(decay ** (1 / _gap(tau_forward, tau_backward)))


def _gap(tau_forward: int, tau_backward: int) -> int:
    if tau_forward <= tau_backward:
        raise ConfigError(
            f"T2 corrects nothing where tau_forward={tau_forward} is not above tau_backward={tau_backward}"
        )
    return tau_forward - tau_backward
