"""A simulated pipeline in a few lines, for tests of what stages compute."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from support.methods import MethodCase
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pipetrain.data.loader import Loader
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.pipeline import build_pipeline
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.executors.simulated import SimulatedExecutor
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.weight_reads import StageContext, WeightRead
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.stage import Stage

CPU = torch.device("cpu")
PLAIN = ComputeOptions()
NEVER = 10**9
"""The step at which a phase ends that lasts to the end of the run."""

torch.set_num_threads(1)  # the tensors are tiny: a second thread only waits for the first

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Rate = Callable[[int], float]
Case = str | MethodCase
"""A name of `METHODS`, or a method and a schedule."""


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


def stage_of(
    *layers: nn.Module,
    index: int = 0,
    loss: object = None,
    build: Build = sgd,
    rate: float = 0.1,
    device: torch.device = CPU,
    average_decay: float | None = None,
    arithmetic: ComputeOptions = PLAIN,
) -> Stage:
    """One stage of these layers, at place `index` of some pipeline; it may stash a few weight versions."""
    chain = LayerChain.of_sequential(nn.Sequential(*layers))
    optimizer = OptimizerFactory(build, lambda _k: rate, average_decay=average_decay)
    training = Training(optimizer, loss or CrossEntropy(), device=device, arithmetic=arithmetic)
    stage = Stage(index, chain, (0, len(layers)), training)
    stage.enter(PipeDream(), StageContext(index, 4, 1, delay=3, entry_delay=3), 0, fresh=True, predicts=True)
    return stage


def unit_gradients(stage: Stage) -> dict[str, Tensor]:
    """Gradients of ones."""
    return {name: torch.ones_like(parameter) for name, parameter in stage.optimizer.parameters.items()}


def step(
    stage: Stage,
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    microbatch: tuple[int, int] = (0, 0),
    activations: Activations = Activations.KEPT,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """F and B on the newest weights; (outputs, gradients of the inputs)."""
    outputs = stage.forward(microbatch, inputs, newest(stage), activations, store=False)
    return outputs, stage.backward([microbatch], gradients, newest(stage))


def newest(stage: Stage) -> WeightRead:
    """A reading of the weights that the stage has now."""
    return WeightRead(stage.updates)


@dataclass
class Pipeline:
    """Stages, their simulated executor and the losses of the steps so far."""

    executor: SimulatedExecutor
    losses: list[float]
    phase_ends: list[int] = field(default_factory=lambda: [NEVER])
    steps: int = 0

    @property
    def stages(self) -> list[Stage]:
        return self.executor.stages

    def train(self, loader: Loader, epochs: int = 1) -> "Pipeline":
        """Whole epochs, drained after each and where a phase ends."""
        size, start, end = len(loader), self.steps, self.steps + epochs * len(loader)
        drains = sorted({*range(size, end + 1, size), *(drain for drain in self.phase_ends if drain < end)})
        for drain in (drain for drain in drains if drain > start):
            epoch, first = divmod(self.steps, size)
            phase = bisect_right(self.phase_ends, self.steps)
            self.executor.train(loader, DrainInterval(epoch, first, drain - epoch * size, self.steps, phase))
            self.steps = drain
        return self

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for stage in self.stages for name, tensor in stage.state().items()}

    def reports(self, field: str) -> list[object]:
        return [stage.report()[field] for stage in self.stages]


def pipeline(
    model: nn.Sequential | LayerChain,
    cuts: Sequence[int],
    case: Case | list[tuple[Case, int]] = "gpipe",
    num_microbatches: int = 1,
    build: Build = sgd,
    rate: Rate = half_decay,
    clip_norm: float | None = None,
    loss: object = None,
    seed: int = 0,
    recompute: Sequence[int] | None = None,
    arithmetic: ComputeOptions = PLAIN,
    average_decay: float | None = None,
    groups: Callable[[Mapping[str, nn.Parameter]], list[Any]] = lambda parameters: list(parameters.values()),
    options_of_stage: Callable[[int], Mapping[str, Any]] = lambda _stage: {},
    lr_by_delay: int | None = None,
) -> Pipeline:
    """A pipeline over `model`, cut before each layer of `cuts`; segments of recomputation begin at stages `recompute`.

    `case` is one for the whole run, or a list of phases: (case, how many steps).
    """
    chain = model if isinstance(model, LayerChain) else LayerChain.of_sequential(model)
    bounds = list(zip([0, *cuts], [*cuts, len(chain)], strict=True))
    losses: list[float] = []
    segments = None if recompute is None else RecomputeSegments(tuple(recompute), len(bounds))
    phases: list[Phase] = []
    for each, steps in case if isinstance(case, list) else [(case, NEVER)]:
        method, schedule = MethodCase.named(each)
        start = phases[-1].end if phases else 0
        rules = PipelineRules(schedule, method, len(bounds), num_microbatches, segments)
        if lr_by_delay is not None:
            rules.divide_rates_by_delay(lr_by_delay)
        phases.append(Phase(rules, start, start + steps))
    optimizer = OptimizerFactory(build, rate, groups, options_of_stage, average_decay=average_decay)
    training = Training(optimizer, loss or CrossEntropy(), clip_norm, seed, arithmetic=arithmetic)
    executor = build_pipeline(
        chain, bounds, phases, training, RunHooks(lambda _t, value: losses.append(value.mean.item()))
    )
    return Pipeline(executor, losses, [phase.end for phase in phases])


def trained(case: Case, num_stages: int = 3, N: int = 1, recompute: Sequence[int] | None = None) -> Pipeline:
    """A pipeline of one linear layer for each stage, after an epoch of twelve minibatches."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(num_stages)])
    pipe = pipeline(net, range(1, num_stages), case, N, recompute=recompute)
    return pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4, N))


def batches(inputs: Tensor, targets: Tensor, size: int, num_microbatches: int = 1) -> Loader:
    """Minibatches in the order of the data; the last may be ragged."""
    return Loader(TensorDataset(inputs, targets), batch_size=size, microbatches=num_microbatches, shuffle=False)


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference between two states, relative to the largest value of each tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        ((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-3)).item() for name in ours
    )


def assert_cuts_keep_gradients(chain: LayerChain, *inputs: Tensor) -> None:
    """With every layer a stage of its own, gradients cross each cut as a message would carry them."""
    chain(*inputs).square().sum().backward()
    expected = [weight.grad.clone() for weight in chain.module.parameters()]
    chain.module.zero_grad()
    crossed, tensors = [], inputs
    for layer in chain.layers:
        received = tuple(tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors)
        outputs = layer(*received)
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        crossed.append((received, tensors))
    gradients = [2 * tensors[0].detach()]
    for received, outputs in reversed(crossed):
        torch.autograd.backward([output for output in outputs if output.is_floating_point()], gradients)
        gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in received if x.is_floating_point()]
    for weight, gradient in zip(chain.module.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient)
