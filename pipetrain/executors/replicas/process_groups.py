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
        apart, together: groups for gradients on the way to the replica that sums them and for means on the way back,
            each with its own order.
        control: group for messages in host memory.
        have_losses: True for the last stage.
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
        """Groups of a worker; None if its stage has no other replica. All processes call it together."""
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
        """Tensors of the first replica in every replica, given tensors of the same names. All call it together."""
        found = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        for tensor in found.values():
            with lost_stage_on_error():
                dist.broadcast(tensor, group=self.control, group_src=0)
        return found

    def in_first(self, tensors: Tensors) -> list[Tensors]:
        """Tensors of all replicas in host memory, in the first replica; empty in the others. All call it together."""
        return gather_tensors(tensors, self.control)

    def from_all(self, value: Any) -> list[Any]:
        """Values that the replicas give, in every replica; JSON must be able to hold them."""
        return control.all_gather_json(value, self.control)
