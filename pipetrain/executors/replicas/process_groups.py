"""The process groups of a stage's replicas."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pipetrain.executors.messages import control
from pipetrain.executors.messages.control import gather_tensors, lost_stage_on_error
from pipetrain.executors.messages.transport import Transport
from pipetrain.schedules import Replicas
from pipetrain.tensors import Tensors


@dataclass(frozen=True)
class ReplicaGroups:
    """The process groups of a stage's replicas.

    Attributes:
        count: R.
        replica: the number of this one.
        transport: of the run.
        apart, together: of gradients on the way to who sums them, and of their means on the way back, each of which
            keeps its own order.
        control: of what is told in host memory.
        have_losses: whether it is the last stage.
    """

    count: int
    replica: int
    transport: Transport
    apart: dist.ProcessGroup
    together: dist.ProcessGroup
    control: dist.ProcessGroup
    have_losses: bool

    @classmethod
    def of(cls, replicas: Replicas, worker: int, transport: Transport) -> "ReplicaGroups | None":
        """Those of a worker, whose rank that is; None where its stage has no other. All processes call it together."""
        own = None
        for stage, count in enumerate(replicas.counts):
            ranks = [*replicas.workers_of(stage)]
            if count > 1:  # every process makes all groups, in one order, as torch requires
                apart, together = transport.new_group(ranks), transport.new_group(ranks)
                control = transport.control_group(ranks)
                if worker in ranks:
                    last = stage == len(replicas.counts) - 1
                    own = cls(count, ranks.index(worker), transport, apart, together, control, last)
        if own is not None:
            for group in (own.apart, own.together):
                transport.connect_all(group)
        return own

    def of_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first replica's tensors, which all of them have under the same names; all call it together."""
        found = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        for tensor in found.values():
            with lost_stage_on_error():
                dist.broadcast(tensor, group=self.control, group_src=0)
        return found

    def in_first(self, tensors: Tensors) -> list[Tensors]:
        """What each replica gives, in order and in host memory, in the first one; nothing elsewhere. All call it."""
        return gather_tensors(tensors, self.control)

    def from_all(self, value: Any) -> list[Any]:
        """The value of JSON's that each replica gives, in each of them."""
        return control.all_gather_json(value, self.control)
