"""A model trained as a pipeline of stages, by a few calls."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pipetrain.engine import outer_launcher
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.data.minibatches import OnePass
from pipetrain.engine.device_queue import numbers
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.base import Executor
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.transport import NEVER, agreed_transport, set_environment
from pipetrain.engine.executors.pipeline import Messages, build_pipeline, build_stages, connect_stages
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import Loss
from pipetrain.engine.methods import Method
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.cuts import balanced_cuts
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.optim.stage_optimizer import common_rate, keep_proportions
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Schedule
from pipetrain.engine.stage.base import BaseStage, Training
from pipetrain.engine.stage.replica_weights import Averaging
from pipetrain.engine.stage.saved_state import restore_stage, selected, stage_tensors

BuildOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""A stage's parameters -> its optimizer, one of torch's."""
_PLAIN = ComputeOptions()


class Pipeline:
    """A model whose stages train under a schedule and a method.

    Without a launcher, all stages are simulated in this process. Under torchrun, each process has one stage, or those
    that the schedule places in it, and they exchange messages over NCCL if each has its own GPU, else over Gloo. The
    weights are equal bit by bit. Every process makes the same calls. The one of the first stage reads the inputs of
    minibatches, the one of the last stage their targets.

    Attributes:
        steps: minibatches trained so far.
    """

    def __init__(  # noqa: PLR0913  (by name)
        self,
        model: nn.Sequential | LayerChain,
        stages: int | Sequence[int],
        *,
        schedule: Schedule,
        method: Method,
        optimizer: BuildOptimizer,
        loss: Loss,
        rate: Callable[[int], float] | None = None,
        microbatches: int = 1,
        clip_norm: float | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        arithmetic: ComputeOptions = _PLAIN,
        messages: Messages | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        """Builds the stages of this process, and connects them to the stages of other processes.

        Args:
            model: its layers are cut into stages; `pipetrain.graph` makes a chain of any other module. The pipeline
                takes over its weights, which every process must have initialized alike.
            stages: their number, D, for the cuts with the fewest weights in the largest stage; or the first layer of
                every stage but the first, such as [2, 5] for three stages.
            schedule: says when each stage does what.
            method: says which weights each forward and backward reads; of the schedule's family.
            optimizer: called once for each stage.
            loss: (output, target) -> the mean over a microbatch.
            rate: learning rate of update k, from 0; None: what the optimizer has.
            microbatches: N, of a minibatch.
            clip_norm: the largest norm of a minibatch's gradient over all stages; None for no clipping.
            seed: of dropout and other draws of the layers.
            device: of the stages; None: a GPU if there is one.
            arithmetic: precision and memory format.
            messages: formats of the messages between stages, from `pipetrain.zoo.messages`; None: plain tensors.
            averaging: of the weights of replicas that train alone, from `pipetrain.zoo.weight_averaging`.

        Raises:
            ConfigError: schedule, method, stages, microbatches, messages and averaging are not compatible, or torchrun
                has started another number of processes than the schedule takes.
        """
        chain = model if isinstance(model, LayerChain) else LayerChain.of_sequential(model)
        bounds = _bounds(chain, stages)
        if method.family != schedule.family:
            raise ConfigError(
                f"{type(method).__name__} takes schedules of the {method.family} family, and {type(schedule).__name__} "
                f"is of the {schedule.family} one"
            )
        rules = PipelineRules(schedule, method, len(bounds), microbatches)
        if averaging is not None and averaging.delay != rules.replicas.delay:
            raise ConfigError(
                f"averaging: of weights that come {averaging.delay} updates late, and the schedule's replicas have "
                f"delay={rules.replicas.delay}; RoundRobin(..., Replicas(..., delay={averaging.delay})) works"
            )
        usual = float(common_rate(optimizer([nn.Parameter(torch.zeros(1, 1))])))
        self._losses: list[Tensor] = []
        self._device = _device(device)
        self._epochs = self.steps = 0
        training = Training(
            OptimizerFactory(
                lambda parameters: keep_proportions(optimizer(parameters), usual), rate or (lambda _update: usual)
            ),
            loss=loss,
            clip_norm=clip_norm,
            seed=seed,
            device=self._device,
            arithmetic=arithmetic,
            averaging=averaging,
        )
        hooks = RunHooks(on_step=lambda _minibatch, loss: self._losses.append(loss.mean))
        self._executor: Executor
        if not outer_launcher.is_present():
            self._executor = build_pipeline(chain, bounds, rules, training, hooks, messages)
            return
        rank = _joined(self._device, rules)
        placement = rules.placement
        own = build_stages(chain, bounds, training, placement.stages_of[rank], placement.replica_of(rank))
        self._executor = connect_stages(own, rules, hooks, clip_norm, agreed_transport(self._device), messages)

    @property
    def stages(self) -> Sequence[BaseStage]:
        """The stages of this process, in order."""
        return self._executor.stages

    def train(self, minibatches: Iterable[Any]) -> list[float]:
        """Trains on each minibatch once, and drains the pipeline after the last.

        Args:
            minibatches: (inputs, targets), each a tensor or a tuple of tensors with a row for each sample, such as a
                DataLoader. Without a length, they are read at once.

        Returns:
            The loss of each step, in every process.

        Raises:
            DataError: an item is no pair of tensors.
        """
        given = OnePass(minibatches)
        self._losses = []
        interval = DrainInterval(self._epochs, first=0, last=len(given), start=self.steps)
        self._executor.train(given, interval)
        self._epochs += 1
        self.steps += len(given)
        losses: list[float] = self._executor.broadcast_from_last(numbers(self._losses))
        return losses

    def evaluate(self, minibatches: Iterable[Any]) -> dict[str, float]:
        """The loss and its metrics over all minibatches, in every process; see `train` for what they may be."""
        found: dict[str, float] = self._executor.broadcast_from_last(self._executor.evaluate(OnePass(minibatches)))
        return found

    def report(self) -> list[dict[str, Any]]:
        """Measurements of each stage: weight versions, peak bytes of weights and activations, staleness."""
        return self._executor.gather([stage.report() for stage in self.stages])

    def weights(self) -> dict[str, Tensor] | None:
        """Weights and buffers of the whole model by name, in the process of the last stage; None elsewhere.

        They are as `model.state_dict()` has them, and only valid until the training goes on.
        """
        return self._executor.whole_state()

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state of this process's stages, to save with torch.save: weights, optimizer, averages and all.

        Tensors are named as in the whole model, so another number of stages can load them.
        """
        parts = [stage_tensors(stage, shared=True) for stage in self.stages]
        tensors = {name: each.detach().clone() for part in parts for name, each in part.items()}
        return {"steps": self.steps, "epochs": self._epochs, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the stages of this process from a `state_dict`, of a whole pipeline or of these stages.

        Raises:
            ConfigError: it lacks a weight of these stages.
        """
        for stage in self.stages:
            load = partial(selected, state["tensors"], replica=stage.state_of)
            restore_stage(stage, load, state["steps"], "the state dict")
        self.steps, self._epochs = state["steps"], state["epochs"]


def _bounds(chain: LayerChain, stages: int | Sequence[int]) -> list[tuple[int, int]]:
    """(first layer, last layer exclusive) of each stage."""
    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in chain.layers]
    if not isinstance(stages, int):
        cuts = list(stages)
    elif 1 <= stages <= len(chain):
        cuts = balanced_cuts([sizes] * stages, weighted=[size > 0 for size in sizes])
    else:
        cuts = [0]
    ends = [0, *cuts, len(chain)]
    if any(a >= b for a, b in pairwise(ends)):
        raise ConfigError(
            f"stages={stages}: each stage needs a layer, and the model has {len(chain)}; give their number, or the "
            "first layer of each later stage in ascending order"
        )
    return list(pairwise(ends))


def _device(given: torch.device | str | None) -> torch.device:
    if given is not None:
        return torch.device(given)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    return torch.device("cpu")


def _joined(device: torch.device, rules: PipelineRules) -> int:
    """The rank of this process, in torch.distributed's default group."""
    needed = rules.placement.num_processes
    if int(os.environ["WORLD_SIZE"]) != needed:
        raise ConfigError(
            f"{os.environ['WORLD_SIZE']} processes for {rules.num_stages} stages; torchrun --nproc-per-node {needed} "
            f"works with schedule {rules.schedule.name}"
        )
    if not dist.is_initialized():
        set_environment(device.type)
        dist.init_process_group("gloo", timeout=NEVER)
    return dist.get_rank()
