"""Carries microbatches forward through stages in several processes, stage by stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from typing_extensions import override

from pipetrain.engine.errors import LostStageError
from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages.control import NCCL_LOST
from pipetrain.engine.executors.messages.links import LinkGroups, Links, Spec
from pipetrain.engine.executors.messages.p2p import Incoming, Key, Outgoing
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import StepLoss, count_of, microbatch_loss, microbatch_weight, step_loss
from pipetrain.engine.schedules import Placement
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors
from pipetrain.plugins.torch_schedules.schedules import TorchSchedule
from pipetrain.plugins.torch_schedules.stage_adapter import TorchStage, packed

Compute = Callable[[Stage, Tensors], Tensors]
"""(a stage of this process, its inputs) -> its outputs."""

_AHEAD = 2


class Relay:
    """Passes microbatches forward through stages in several processes, for evaluations and for finding shapes.

    One link for each direction between two processes carries all messages, in the order of the microbatches, then of
    the stages, which both ends know. Messages go through host memory.
    """

    def __init__(self, stages: Sequence[Stage], placement: Placement, waiting: Around) -> None:
        self._stages = stages
        self._last = sum(map(len, placement.stages_of)) - 1
        self._placement = placement
        self._rank = dist.get_rank()
        links = Links(Transport(stages[0].device), waiting)
        group = links.transport.new_group()
        groups = LinkGroups(group, group)
        self._incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        for stage in stages:
            if (peer := self._elsewhere(stage.index - 1)) is not None:
                self._incoming[peer] = Incoming(
                    links.to(peer, stage.index - 1, groups), f"activations from {placement.name(peer)}"
                )
            if (peer := self._elsewhere(stage.index + 1)) is not None:
                self._outgoing[peer] = Outgoing(
                    links.to(peer, stage.index + 1, groups), f"activations to {placement.name(peer)}"
                )

    def _elsewhere(self, stage: int) -> int | None:
        """Process of a stage; None if it is this one or there is no such stage."""
        if not 0 <= stage <= self._last:
            return None
        process = self._placement.process_of(stage)
        return None if process == self._rank else process

    def carry(self, key: Key, inputs: Callable[[], Tensors], compute: Compute) -> Tensors:
        """Passes one microbatch through all stages and returns the outputs of the last stage of this process.

        Only the process of the first stage calls `inputs`; each calls `compute` for all of its stages.
        """
        tensors: Tensors = ()
        for stage in self._stages:
            source, sink = self._elsewhere(stage.index - 1), self._elsewhere(stage.index + 1)
            if stage.index == 0:
                tensors = inputs()
            elif source is not None:
                self._incoming[source].expect([_at(key, stage.index)])
                tensors = self._incoming[source].take()
            tensors = compute(stage, tensors)
            if sink is not None:
                self._outgoing[sink].send(_at(key, stage.index + 1), tensors)
                self._outgoing[sink].settle(_AHEAD)
        return tensors

    def end(self) -> None:
        """Waits until the other processes have taken every message."""
        for outbox in self._outgoing.values():
            outbox.settle(0)


def _at(key: Key, stage: int) -> Key:
    """The key of the messages to a stage: messages to other stages have other shapes."""
    return None if key is None else (key, stage)


@dataclass(frozen=True)
class Shapes:
    """Inputs and outputs of a stage for one microbatch.

    Attributes:
        inputs: of its layers.
        library_inputs, library_outputs: as the library carries them, on torch's meta device.
    """

    inputs: tuple[Spec, ...]
    library_inputs: Tensors
    library_outputs: Tensors

    @classmethod
    def of(cls, inputs: Tensors, outputs: Tensors, *, first: bool, last: bool) -> "Shapes":
        """Shapes of these tensors."""
        library_inputs = inputs if first else tuple(map(packed, inputs))
        library_outputs = tuple(x.contiguous() for x in outputs) if last else tuple(map(packed, outputs))
        return cls(
            tuple(map(Spec.of, inputs)),
            tuple(_meta(x, differentiable=not first) for x in library_inputs),
            tuple(_meta(x, differentiable=x.is_floating_point()) for x in library_outputs),
        )


def _meta(tensor: Tensor, *, differentiable: bool) -> Tensor:
    return Spec.of(tensor).empty(torch.device("meta")).requires_grad_(differentiable)


class _StageOfLibrary(PipelineStage):
    """The library's stage, without what torch 2.11 does and Gloo cannot."""

    @override
    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """A first message to each neighbor, which 2.11 would send to its own process, and Gloo has no need of."""
        gloo = dist.get_backend(self.group) == "gloo"
        return [] if gloo else super()._get_init_p2p_neighbors_ops()


class Pipe:
    """Runs forwards and backwards of a minibatch; the parameters then have its gradients."""

    def __init__(
        self,
        schedule: TorchSchedule,
        rules: PipelineRules,
        stages: Sequence[Stage],
        shapes: dict[int, Shapes],
        group: dist.ProcessGroup,
        computing: Around,
    ) -> None:
        here = {stage.index for stage in stages}
        self._adapters = [
            TorchStage(stage, shapes[stage.index].inputs, computing, copies=stage.index - 1 in here) for stage in stages
        ]
        # with both shapes given the library does not run the layers to find them, on which it would leave its traces
        library_stages = [
            _StageOfLibrary(
                adapter,
                stage.index,
                rules.num_stages,
                stage.device,
                input_args=shapes[stage.index].library_inputs,
                output_args=shapes[stage.index].library_outputs,
                group=group,
            )
            for adapter, stage in zip(self._adapters, stages, strict=True)
        ]
        self._loss = stages[-1].loss
        self._targets: Sequence[Tensors] = ()
        self._counts: list[float] = []
        self._losses: list[Tensor] = []
        # the weights n_j / n are in the loss, so that the library must not average again
        self._schedule = get_schedule_class(schedule.library_name)(
            library_stages, rules.num_microbatches, loss_fn=self._weighted_loss, scale_grads=False
        )

    def _weighted_loss(self, outputs: Tensors, number: Tensor) -> Tensor:
        """n_j / n · loss_j, a scalar, of the microbatch with this number."""
        assert self._loss is not None
        j = int(number)
        weight = microbatch_weight(self._counts, j)
        loss = microbatch_loss(self._loss, outputs, self._targets[j], weight)
        self._losses.append(loss.detach())
        return loss * weight

    def step(self, minibatch: int, inputs: Tensors, targets: Sequence[Tensors]) -> StepLoss | None:
        """Trains on one minibatch. Returns its loss in the process of the last stage.

        Args:
            minibatch: counted from the start of the run.
            inputs: of all microbatches together, in the process of the first stage.
            targets: of each microbatch, in the process of the last stage.

        Raises:
            LostStageError: another process is gone.
        """
        for adapter in self._adapters:
            adapter.begin(minibatch)
        numbers = None
        if self._loss is not None:
            self._targets, self._counts, self._losses = targets, [count_of(self._loss, each) for each in targets], []
            # the library cuts one tensor into microbatches: it gets their numbers, as targets may be several tensors
            numbers = torch.arange(len(targets))
        try:
            self._schedule.step(*inputs, target=numbers, return_outputs=False)
        except RuntimeError as error:
            if error.__cause__ is not None:  # what a layer raised, which the library wraps in an error
                raise error.__cause__ from None
            if any(sign in str(error) for sign in ("Connection", NCCL_LOST)):  # nothing more precise is raised
                raise LostStageError(None) from error
            raise
        return step_loss(self._losses, self._counts) if self._losses else None
