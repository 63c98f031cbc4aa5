"""A run whose few layers are compiled, which takes less long than compiling those of `small_model`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.worker_pool import job, plan_of
from torch import nn

from pipetrain.runner.training.job import Job


def compiled_job(folder: Path, method: str, microbatches: int = 1, *, compiled: bool = True, **settings: Any) -> Job:
    """Two stages, two epochs; minibatches of four samples and of two, and evaluations likewise."""
    made = job(
        folder,
        method,
        2,
        model={"_target_": "support.compiled.build"},
        dataset={"train": 10, "eval": 6},
        eval={"batch_size": 4},
        train={"microbatches": microbatches, "epochs": 2, "compile": compiled},
        **settings,
    )
    return replace(made, plan=plan_of([(0, 1), (1, 3)], made.plan.replicas))


class Block(nn.Module):
    """A layer with buffers that its forward changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x.flatten(1)))


def build(channels: int = 1, classes: int = 4) -> nn.Sequential:
    """A chain for pictures of 8 x 8."""
    return nn.Sequential(Block(64 * channels, 8), Block(8, 8), nn.Linear(8, classes))
