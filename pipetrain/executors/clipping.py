"""Gradient clipping, the same wherever the stages are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipetrain.device_queue import numbers, queues


@dataclass(frozen=True)
class Clipping:
    """Gradient clipping: over all stages under synchronous methods, per stage where no global norm exists in time.

    Attributes:
        limit: the largest norm.
        over_all_stages: True if the norm is that of the whole model's gradient.
    """

    limit: float
    over_all_stages: bool

    def clip(
        self, gradients: Mapping[str, Tensor], squared: Tensor, of_all_stages: Callable[[], Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """A stage's gradients, scaled down in place where the norm is above the limit.

        Args:
            gradients: by weight name.
            squared: the stage's squared norm.
            of_all_stages: gives those of all stages in order; called only where the norm is over all of them.
        """
        return clipped(gradients, of_all_stages() if self.over_all_stages else [squared], self.limit)


def squared_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """The sum of squares over a stage's gradients, a float32 scalar."""
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(list(gradients.values()))
    return torch.stack([norm.float() for norm in norms]).square().sum()


def clipped(gradients: Mapping[str, Tensor], squared_norms: Sequence[Tensor], limit: float) -> dict[str, Tensor]:
    """The gradients, scaled in place so that the norm over all `squared_norms` is at most `limit`.

    As torch's clip_grad_norm_; those of a `GradientSum` have memory of their own each. Where there is one norm, which a
    device has yet to find, the host does not wait for it.
    """
    if not gradients:
        return {}
    if len(squared_norms) == 1 and queues(squared_norms[0].device):
        torch._foreach_mul_(list(gradients.values()), _factor(squared_norms[0], limit))
    elif (factor := _factor(torch.tensor(numbers(squared_norms)).sum(), limit).item()) != 1.0:
        torch._foreach_mul_(list(gradients.values()), factor)
    return dict(gradients)


def _factor(squared: Tensor, limit: float) -> Tensor:
    return torch.clamp(limit / (squared.sqrt() + 1e-6), max=1.0)
