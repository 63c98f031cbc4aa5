"""Layers that do on a GPU what a test is about, and workers that share a GPU."""

import os
from typing import Any

import torch
from support import small_model, worker_pool
from torch import Tensor, nn

from pipetrain.engine.models.chain import LayerChain

BLOCKS, WIDTH, ROWS = 8, 4096, 64


class Waiting(nn.Module):
    """Waits for the whole device before each forward, and returns the free memory of torch's allocator to it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Any:
        if (device := inputs[0].device).type != "cpu":
            torch.get_device_module(device).synchronize()
            torch.get_device_module(device).empty_cache()
        return self.layer(*inputs)


def waiting(channels: int, classes: int) -> LayerChain:
    """The small model, each of whose layers waits for the whole device."""
    module = nn.Sequential(*(Waiting(layer) for layer in small_model.build(channels, classes).layers))
    return LayerChain(module, list(module))


class Widen(nn.Module):
    """Makes many wide rows of each sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).repeat(ROWS, WIDTH // x[0].numel())


class Narrow(nn.Module):
    """The classes of each sample again."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (ROWS, -1)).mean(0)[:, : self.classes]


def even(classes: int) -> LayerChain:
    """Ten layers: eight between the first and the last take as long as each other, milliseconds on a GPU."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)]
    module = nn.Sequential(Widen(), *blocks, Narrow(classes))
    return LayerChain(module, list(module))


def sharing_one(rank: int, *arguments: Any) -> None:
    """A process of `worker_pool.distributed` that sees the first GPU alone, whenever its fork server was started."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    worker_pool.run_jobs(rank, *arguments)


def on_a_machine_of_its_own(rank: int, *arguments: Any) -> None:
    """A process of `worker_pool.distributed` that uses NCCL even if others share its GPU.

    NCCL treats them as running on different machines, and connects them over the network.
    """
    os.environ["NCCL_HOSTID"] = str(rank)
    worker_pool.run_jobs(rank, *arguments)
