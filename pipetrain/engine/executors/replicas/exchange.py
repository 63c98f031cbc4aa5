"""Tensors that the replicas of a stage give each other, without waiting before they take them."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages.control import lost_stage_on_error
from pipetrain.engine.stage.replica_weights import Exchange, Gathered
from pipetrain.engine.tensors import bytes_of


class InProcessExchange(Exchange):
    """Exchange of one of R replicas that are all in this process and share `rows`."""

    def __init__(self, replica: int, count: int, rows: dict[int, dict[int, Tensor]]) -> None:
        self._replica, self._count, self._rows = replica, count, rows
        self._begun = 0

    @classmethod
    def of_all(cls, count: int) -> "list[InProcessExchange]":
        """The exchanges of R replicas with each other."""
        rows = dict[int, dict[int, Tensor]]()
        return [cls(replica, count, rows) for replica in range(count)]

    @override
    def begin(self, own: Tensor) -> Gathered:
        row = self._rows.setdefault(self._begun, {})
        row[self._replica] = own
        if len(row) == self._count:
            del self._rows[self._begun]
        self._begun += 1
        return lambda: [row[r] for r in range(self._count)] if len(row) == self._count else None


@dataclass
class ProcessExchange(Exchange):
    """Exchange between the processes of a group; `buffers` is the device that tensors travel from."""

    group: dist.ProcessGroup
    waiting: Around
    buffers: torch.device

    @override
    def begin(self, own: Tensor) -> Gathered:
        sent = bytes_of(own.to(self.buffers))  # Gloo knows some dtypes only
        rows = [torch.empty_like(sent) for _ in range(dist.get_world_size(self.group))]
        direct = sent.device.type != "cpu"
        with lost_stage_on_error(direct=direct):
            work = dist.all_gather(rows, sent, group=self.group, async_op=True)

        def take() -> list[Tensor]:
            with self.waiting("the other replicas' weights or losses"), lost_stage_on_error(direct=direct):
                work.wait()
            return [row.view(own.dtype).to(own.device) for row in rows]

        return take
