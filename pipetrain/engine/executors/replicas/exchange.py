"""Tensors that the replicas of a stage give each other, without waiting before they take them."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages.control import lost_stage_on_error
from pipetrain.engine.stage.replica_weights import Exchange, Gathered
from pipetrain.engine.tensors import bytes_of


@dataclass
class _Row(Gathered):
    count: int
    tensors: dict[int, Tensor] = field(default_factory=dict)

    @override
    def take(self) -> list[Tensor] | None:
        return [self.tensors[r] for r in range(self.count)] if len(self.tensors) == self.count else None


class InProcessExchange(Exchange):
    """Exchange of one of R replicas that are all in this process and share `rows`."""

    def __init__(self, replica: int, count: int, rows: dict[int, _Row]) -> None:
        self._replica, self._count, self._rows = replica, count, rows
        self._begun = 0

    @classmethod
    def of_all(cls, count: int) -> "list[InProcessExchange]":
        """The exchanges of R replicas with each other."""
        rows = dict[int, _Row]()
        return [cls(replica, count, rows) for replica in range(count)]

    @override
    def begin(self, own: Tensor) -> Gathered:
        row = self._rows.setdefault(self._begun, _Row(self._count))
        row.tensors[self._replica] = own
        if len(row.tensors) == self._count:
            del self._rows[self._begun]
        self._begun += 1
        return row


@dataclass
class _Arriving(Gathered):
    own: Tensor
    rows: list[Tensor]
    work: dist.Work
    waiting: Around

    @override
    def take(self) -> list[Tensor]:
        direct = self.rows[0].device.type != "cpu"
        with self.waiting("the other replicas' weights or losses"), lost_stage_on_error(direct=direct):
            self.work.wait()
        return [row.view(self.own.dtype).to(self.own.device) for row in self.rows]


@dataclass
class ProcessExchange(Exchange):
    """Exchange between processes.

    Attributes:
        group: of the replicas.
        buffers: device that tensors travel from.
    """

    group: dist.ProcessGroup
    waiting: Around
    buffers: torch.device

    @override
    def begin(self, own: Tensor) -> Gathered:
        sent = bytes_of(own.to(self.buffers))  # Gloo knows some dtypes only
        rows = [torch.empty_like(sent) for _ in range(dist.get_world_size(self.group))]
        with lost_stage_on_error(direct=sent.device.type != "cpu"):
            work = dist.all_gather(rows, sent, group=self.group, async_op=True)
        return _Arriving(own, rows, work, self.waiting)
