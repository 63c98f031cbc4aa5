"""The gradient of a weight that several stages hold: the sum of theirs, in the order of the stages, in each of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipetrain.models.ties import Tie
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors


@dataclass
class TiedGradients:
    """What the stages have offered for an update, until all that share it have taken it.

    Attributes:
        ties: of the model.
        takers: the stages that take the sums here.
    """

    ties: Sequence[Tie]
    takers: Collection[int]
    _offered: dict[str, dict[int, Tensor | None]] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)

    def of(self, stage: int) -> list[Tie]:
        """Those that a stage takes part in."""
        return [tie for tie in self.ties if stage in tie.stages]

    def offer(self, stage: int, gradients: Mapping[str, Tensor]) -> None:
        """Takes a stage's part: weight name -> gradient; a weight that its minibatch did not touch has none."""
        self.offer_some(stage, gradients, [tie.name for tie in self.of(stage)])

    def offer_some(self, stage: int, gradients: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Takes a stage's part of these weights alone."""
        for name in names:
            self._offered.setdefault(name, {})[stage] = gradients.get(name)

    def complete(self, stage: int) -> bool:
        """Whether all stages have offered what this one waits for."""
        return all(len(self._offered.get(tie.name, ())) == len(tie.stages) for tie in self.of(stage))

    def totals(self, stage: int) -> dict[str, Tensor]:
        """Weight name -> sum, in memory of its own; weights that no stage has a gradient of are absent."""
        sums = {tie.name: _total([self._offered[tie.name][r] for r in tie.stages]) for tie in self.of(stage)}
        for tie in self.of(stage):
            self._taken[tie.name] = self._taken.get(tie.name, 0) + 1
            if self._taken[tie.name] == sum(r in self.takers for r in tie.stages):
                del self._offered[tie.name], self._taken[tie.name]
        return {name: total for name, total in sums.items() if total is not None}


def _total(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    total = present[0].clone()
    for part in present[1:]:
        total.add_(part)
    return total


def message(stage: Stage, names: Sequence[str], gradients: Mapping[str, Tensor]) -> Tensors:
    """The gradients of weights as one message: which there are, then one tensor for each weight."""
    there = torch.tensor([name in gradients for name in names], device=stage.device)
    weights = {stage.full_names[local]: weight for local, weight in stage.weights.newest.tensors.items()}
    return there, *(gradients[name] if name in gradients else torch.zeros_like(weights[name]) for name in names)


def content(names: Sequence[str], received: Tensors) -> dict[str, Tensor]:
    """The gradients in such a message, by weight name."""
    there, *gradients = received
    return {name: each for name, each, has in zip(names, gradients, there.tolist(), strict=True) if has}
