"""A simulated pipeline in a few lines, for tests of what stages compute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pipetrain.data.loader import Loader
from pipetrain.executors.base import Rules, Segment
from pipetrain.executors.simulated import SimulatedExecutor
from pipetrain.losses import CrossEntropy
from pipetrain.methods.naive_async import NaiveAsync
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.pipeoptim import PipeOptim
from pipetrain.methods.synchronous import Synchronous
from pipetrain.models.chain import LayerChain, chain_of
from pipetrain.optimizer import StageOptimizer
from pipetrain.schedules import Read
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.schedules.one_f_one_b_flush import OneFOneBFlush
from pipetrain.schedules.sequential import Sequential
from pipetrain.stage import Stage

RULES = {
    "sequential": (Synchronous(), Sequential()),
    "gpipe": (Synchronous(), GPipe()),
    "pipedream_flush": (Synchronous(), OneFOneBFlush()),
    "naive_async": (NaiveAsync(), OneFOneB()),
    "pipedream": (PipeDream(), OneFOneB()),
    "vertical_sync": (PipeDream(vertical_sync=True), OneFOneB()),
    "pipeoptim": (PipeOptim(), OneFOneB()),
}
"""What the tests call a method -> the method and its default schedule."""

SYNCHRONOUS = ("sequential", "gpipe", "pipedream_flush")
ASYNCHRONOUS = ("naive_async", "pipedream", "vertical_sync", "pipeoptim")
CPU = torch.device("cpu")

torch.set_num_threads(1)  # the tensors are tiny: a second thread only waits for the first

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Rate = Callable[[int], float]


class Function(nn.Module):
    """A layer that is a function of its inputs."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, *tensors):
        return self.function(*self.parts, *tensors)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Momentum and weight decay: the optimizer of most papers here."""
    return torch.optim.SGD(parameters, lr=0.0, momentum=0.9, weight_decay=0.01)


def half_decay(k: int) -> float:
    """A learning rate that every update changes."""
    return 0.1 / (1 + 0.05 * k)


def stage_of(*layers: nn.Module, index: int = 0, loss: object = None, build: Build = sgd, rate: float = 0.1) -> Stage:
    """One stage of these layers, at place `index` of some pipeline."""
    chain = chain_of(nn.Sequential(*layers))
    return Stage(index, chain, 0, len(layers), optimizers(build, lambda k: rate), loss, 0, CPU)


def optimizers(build: Build, rate: Rate) -> Callable[[dict[str, nn.Parameter]], StageOptimizer]:
    return lambda parameters: StageOptimizer(build, parameters, rate)


def newest(stage: Stage) -> Read:
    """A reading of the weights that the stage has now."""
    return Read(stage.updates)


@dataclass
class Pipeline:
    """Stages, their simulated executor and the losses of the steps so far."""

    executor: SimulatedExecutor
    losses: list[float]
    steps: int = 0

    @property
    def stages(self) -> list[Stage]:
        return self.executor.stages

    def train(self, loader: Loader, epochs: int = 1) -> "Pipeline":
        """Whole epochs, drained after each."""
        for epoch in range(epochs):
            self.executor.train(loader, Segment(epoch, 0, len(loader), self.steps))
            self.steps += len(loader)
        return self

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for stage in self.stages for name, tensor in stage.state().items()}

    def reports(self, field: str) -> list[object]:
        return [stage.report()[field] for stage in self.stages]


def pipeline(
    model: nn.Module | LayerChain,
    cuts: Sequence[int],
    rule: str = "gpipe",
    microbatches: int = 1,
    build: Build = sgd,
    rate: Rate = half_decay,
    clip_norm: float | None = None,
    loss: object = None,
    seed: int = 0,
) -> Pipeline:
    """A pipeline over `model`, cut before each layer of `cuts`."""
    chain = chain_of(model)
    bounds = list(zip([0, *cuts], [*cuts, len(chain)], strict=True))
    last = len(bounds) - 1
    stages = [
        Stage(r, chain, *ends, optimizers(build, rate), (loss or CrossEntropy()) if r == last else None, seed, CPU)
        for r, ends in enumerate(bounds)
    ]
    method, schedule = RULES[rule]
    losses: list[float] = []
    rules = Rules(schedule, method, len(stages), microbatches)
    executor = SimulatedExecutor(stages, rules, clip_norm, lambda t, value: losses.append(value.item()))
    return Pipeline(executor, losses)


def batches(inputs: Tensor, targets: Tensor, size: int, microbatches: int = 1) -> Loader:
    """Minibatches in the order of the data; the last may be ragged."""
    return Loader(TensorDataset(inputs, targets), batch_size=size, microbatches=microbatches, shuffle=False)


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference between two states, relative to the largest value of each tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        ((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-3)).item() for name in ours
    )
