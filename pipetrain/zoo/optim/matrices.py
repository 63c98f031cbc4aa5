"""Optimizers of matrices, with AdamW for all other parameters, as one optimizer."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.number_range import NOT_NEGATIVE, POSITIVE
from pipetrain.zoo.optim.soap import SoapOfMatrices

_ADAMW = "adamw"


class MatrixOptimizer(Optimizer):
    """Updates parameters of two dimensions by an algorithm for matrices, and the rest by AdamW.

    Embeddings and the last layer of a language model are matrices that belong to AdamW: a parameter group with
    `algorithm: adamw` has all its parameters updated by it.

    Both parts share one state and one list of parameter groups. A group of the caller's becomes up to two groups, one
    for each part.

    Args:
        params: parameters, or torch's parameter groups.
        options: of the algorithm for matrices, with `lr` and `weight_decay`.
        adamw_lr_scale: learning rate of AdamW relative to `lr`.
        adamw_betas, adamw_eps: options of AdamW.

    Raises:
        ConfigError: a group has another `algorithm`.
    """

    algorithm: ClassVar[type[Optimizer]]

    def __init__(
        self,
        params: Iterable[Any],
        options: dict[str, Any],
        adamw_lr_scale: float,
        adamw_betas: Sequence[float],
        adamw_eps: float,
    ) -> None:
        POSITIVE.check("optimizer.adamw_lr_scale", adamw_lr_scale)
        NOT_NEGATIVE.check("optimizer.adamw_eps", adamw_eps)
        given = [{**each, "params": list(each["params"])} if isinstance(each, dict) else each for each in params]
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        rest = {"weight_decay": options["weight_decay"], "betas": tuple(adamw_betas), "eps": adamw_eps}
        parts: list[Optimizer] = []
        of_adamw = {**rest, "lr": options["lr"]}
        for kind, own, scale in ((self.algorithm, options, 1.0), (AdamW, of_adamw, adamw_lr_scale)):
            members = [self._part_of(group, kind, own, scale) for group in groups]
            if members := [group for group in members if group["params"]]:
                parts.append(kind(members, **own))
        super().__init__(given, {**rest, **options, "algorithm": None})
        self._parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]
        for part in parts:
            part.state = self.state

    @override
    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, with the parts, which share its state and its groups."""
        return {**super().__getstate__(), "_parts": self._parts}

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores it; a state dict that is loaded comes here as well, and replaces the state and the groups."""
        super().__setstate__(state)
        groups = iter(self.param_groups)
        for part in self._parts:
            part.state = self.state
            part.param_groups = [next(groups) for _ in part.param_groups]

    def _part_of(
        self, group: dict[str, Any], kind: type[Optimizer], own: dict[str, Any], scale: float
    ) -> dict[str, Any]:
        """The parameters of a group that one part updates, with the group's options that the part takes."""
        chosen = group.get("algorithm")
        if chosen not in (None, _ADAMW):
            raise ConfigError(f"algorithm={chosen}: {_ADAMW}, or null to choose by dimensions")
        parameters: list[Tensor] = [*group["params"]]
        matrices = [p for p in parameters if p.dim() == 2 and chosen is None]
        held = {id(p) for p in matrices}
        others = [p for p in parameters if id(p) not in held]
        options = {name: value for name, value in group.items() if name in own and name != "lr"}
        lr_scale = scale * group.get("lr_scale", 1.0)
        rates = {"lr": own["lr"] * lr_scale, "lr_scale": lr_scale}
        return {**options, **rates, "params": others if kind is AdamW else matrices}

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient; takes no closure.

        Raises:
            ConfigError: a matrix is complex.
        """
        for part in self._parts:
            matrices = [p for group in part.param_groups for p in group["params"] if isinstance(part, self.algorithm)]
            if (found := next((p for p in matrices if p.is_complex()), None)) is not None:
                raise ConfigError(
                    f"optimizer._target_: {type(self).__name__} takes real matrices, and a weight of shape "
                    f"{tuple(found.shape)} is complex; algorithm=adamw in a group of optimizer.groups leaves it to "
                    "AdamW"
                )
            part.step()


class Muon(MatrixOptimizer):
    """torch.optim.Muon for matrices: momentum, orthogonalized by Newton and Schulz's iteration (Jordan et al. 2024).

    Args:
        params: parameters, or torch's parameter groups.
        lr: learning rate of the matrices.
        weight_decay: decoupled, for all parameters.
        momentum, nesterov, ns_steps, adjust_lr_fn: as in torch.optim.Muon.
        adamw_lr_scale, adamw_betas, adamw_eps: of AdamW for all other parameters.
    """

    algorithm: ClassVar[type[Optimizer]] = torch.optim.Muon

    def __init__(  # noqa: PLR0913  (one for each setting of the choice)
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        adamw_lr_scale: float = 0.05,
        adamw_betas: Sequence[float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, options, adamw_lr_scale, adamw_betas, adamw_eps)


class Soap(MatrixOptimizer):
    """Adam in a rotated basis for matrices: `SoapOfMatrices`.

    Args:
        params: parameters, or torch's parameter groups.
        lr: learning rate.
        weight_decay: decoupled, for all parameters.
        betas, eps, source, geometry, frequency, covariance_beta: as in `SoapOfMatrices`.
        adamw_lr_scale, adamw_betas, adamw_eps: of AdamW for all other parameters.
    """

    algorithm: ClassVar[type[Optimizer]] = SoapOfMatrices

    def __init__(  # noqa: PLR0913  (one for each setting of the choice)
        self,
        params: Iterable[Any],
        lr: float = 3e-3,
        weight_decay: float = 0.01,
        betas: Sequence[float] = (0.95, 0.95),
        eps: float = 1e-8,
        *,
        source: str = "second",
        geometry: str = "bilateral",
        frequency: int = 10,
        covariance_beta: float | None = None,
        adamw_lr_scale: float = 1.0,
        adamw_betas: Sequence[float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "betas": tuple(betas),
            "eps": eps,
            "source": source,
            "geometry": geometry,
            "frequency": frequency,
            "covariance_beta": covariance_beta,
        }
        super().__init__(params, options, adamw_lr_scale, adamw_betas, adamw_eps)
