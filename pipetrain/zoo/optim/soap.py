"""Adam in a basis that follows the gradients of each matrix: SOAP, and the basis rotations related to it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole

SOURCES = ("second", "first")
GEOMETRIES = ("bilateral", "unilateral")
_EPS = 1e-30


class SoapOfMatrices(Optimizer):
    """Adam whose second moment is kept in a rotated basis (Vyas et al. 2024; Jung, Shin & Lee, arXiv 2602.03515).

    For the gradient G of a matrix, with orthogonal bases Q_L and Q_R that are renewed every `frequency` steps:

        M ← β₁M + (1-β₁)G,  G̃ = Q_Lᵀ G Q_R,  M̃ = Q_Lᵀ M Q_R,  Ṽ ← β₂Ṽ + (1-β₂)G̃²
        W ← W - lr·λ·W,  W ← W - lr·√(1-β₂ᵗ)/(1-β₁ᵗ) · Q_L (M̃ / (√Ṽ + ε)) Q_Rᵀ

    Args:
        params: matrices.
        lr, betas, eps, weight_decay: as in AdamW.
        source: of the bases: `second`, the averages L of GGᵀ and R of GᵀG, or `first`, the average M.
        geometry: `bilateral`, or `unilateral` for a basis of the smaller side alone.
        frequency: steps between renewals of the bases; the first step makes them.
        covariance_beta: decay of L and R; None for β₂.

    Raises:
        ConfigError: an option has another value.
    """

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        for name, choices in (("source", SOURCES), ("geometry", GEOMETRIES)):
            if options[name] not in choices:
                raise ConfigError(f"optimizer.{name}={options[name]}: needs {' or '.join(choices)}")
        check_whole("optimizer.frequency", options["frequency"], least=1)
        super().__init__(params, options)

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every matrix that has a gradient; takes no closure."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _update(weight, weight.grad, self.state[weight], group)


def _update(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    sides = _sides(weight, group["geometry"])
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    (beta1, beta2), average, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
    state["step"] += 1
    steps = int(state["step"])
    average.lerp_(gradient, 1 - beta1)
    if group["source"] == "second":
        beta = beta2 if group["covariance_beta"] is None else group["covariance_beta"]
        for side in sides:
            product = gradient @ gradient.T if side == "left" else gradient.T @ gradient
            state.setdefault(f"covariance_{side}", torch.zeros_like(product)).lerp_(product, 1 - beta)
    if steps == 1 or steps % group["frequency"] == 0:
        for side in sides:
            _renew_basis(side, state, group["source"])
    rotated = _rotated(gradient, state, sides)
    square.mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
    direction = _rotated(average, state, sides) / square.sqrt().add_(group["eps"])
    for side in sides:
        basis = state[f"basis_{side}"]
        direction = basis @ direction if side == "left" else direction @ basis.T
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    weight.add_(direction, alpha=-group["lr"] * (1 - beta2**steps) ** 0.5 / (1 - beta1**steps))


def _sides(weight: Tensor, geometry: str) -> tuple[str, ...]:
    if geometry == "bilateral":
        return ("left", "right")
    return ("left",) if weight.shape[0] < weight.shape[1] else ("right",)


def _rotated(tensor: Tensor, state: dict[str, Tensor], sides: tuple[str, ...]) -> Tensor:
    for side in sides:
        basis = state[f"basis_{side}"]
        tensor = basis.T @ tensor if side == "left" else tensor @ basis
    return tensor


def _renew_basis(side: str, state: dict[str, Tensor], source: str) -> None:
    """Makes the basis of one side, or improves it by one step of power iteration."""
    basis = state.get(f"basis_{side}")
    if source == "first":
        average = state["exp_avg"] if side == "left" else state["exp_avg"].T
        if basis is None:
            renewed = _decomposed(lambda: torch.linalg.svd(average)[0], average @ average.T)
        else:
            renewed = torch.linalg.qr(average @ (average.T @ basis))[0]
    else:
        covariance = state[f"covariance_{side}"]
        if basis is None:
            shifted = covariance + _EPS * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
            renewed = _decomposed(lambda: torch.linalg.eigh(shifted)[1].flip(1), covariance)
        else:
            # the largest eigenvalue first: QR changes the leading columns least
            order = (basis * (covariance @ basis)).sum(0).argsort(descending=True)
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].index_select(0 if side == "left" else 1, order))
            renewed = torch.linalg.qr(covariance @ basis[:, order])[0]
    # as a checkpoint restores it: products with another layout are rounded otherwise
    state[f"basis_{side}"] = renewed.contiguous()


def _decomposed(decompose: Callable[[], Tensor], like: Tensor) -> Tensor:
    """A basis; NaN for gradients that are not finite, so that the run is reported as diverged."""
    try:
        return decompose()
    except torch.linalg.LinAlgError:
        return torch.full_like(like, torch.nan)
