"""The base of all stages: weights, optimizer, gradients and measurements."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import InvariantError
from pipetrain.engine.losses import Loss
from pipetrain.engine.methods import Method
from pipetrain.engine.models.ties import Tie
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.stage.gradients import GradientSum, LossScaler, squared_norm
from pipetrain.engine.stage.measurements import Clock, Measurements
from pipetrain.engine.stage.message_ends import MessageEnds
from pipetrain.engine.stage.recurrent_state import RecurrentState
from pipetrain.engine.stage.replica_weights import Averaging, ReplicaWeights
from pipetrain.engine.stage.staleness import MeasuredMinibatches, StalenessMeter
from pipetrain.engine.tensors import dense_copy, is_dense, new_leaves_sharing_memory
from pipetrain.engine.weights.versions import Weights

_PLAIN = ComputeOptions()
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Training:
    """Training options that all stages of a pipeline share.

    Attributes:
        optimizer: makes the optimizer of each stage.
        loss: (output, target) -> the mean over a microbatch.
        clip_norm: the largest norm of a gradient; None for no clipping.
        seed: key of all random draws.
        arithmetic: precision and memory format.
        staleness: the minibatches whose weight distances are measured; None for none.
        averaging: of the weights of replicas that train alone; None if there are none.
    """

    optimizer: OptimizerFactory
    loss: Loss
    clip_norm: float | None = None
    seed: int = 0
    device: torch.device = _CPU
    arithmetic: ComputeOptions = _PLAIN
    staleness: MeasuredMinibatches | None = None
    averaging: Averaging | None = None


class BaseStage(ABC):
    """The part of a stage that its updates change; names of parameters are local to its module."""

    full_names: dict[str, str]
    """Local name -> the tensor's name in the whole model."""
    carried: RecurrentState
    """State of recurrent layers that lasts from minibatch to minibatch."""
    ties: Sequence[Tie] = ()
    """All weights that stages of the pipeline share."""
    scaler: LossScaler | None = None
    """Factor of the loss; None if it is not scaled."""
    layers: str = ""
    """Indices of its layers in the chain, such as `3-5`."""
    replica: int = 0
    """Index among the stage's replicas."""
    messages: MessageEnds | None = None
    """Formats of its messages; None if they are plain."""
    replica_weights: ReplicaWeights | None = None
    """Averages its weights with those of other replicas; None if it has none, or they average gradients."""

    def __init__(self, index: int, parameters: Mapping[str, nn.Parameter], training: Training) -> None:
        self.index = index
        self.device = training.device
        separate_storages(parameters)
        self.requires_grad = {name: parameter.requires_grad for name, parameter in parameters.items()}
        trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self.optimizer = training.optimizer.of_stage(index, trainable, self.full_names)
        self.weights = Weights(parameters, self.optimizer, training.optimizer.average_decay)
        self.gradients = GradientSum()
        self.clock = Clock(self.device)
        self.measurements = Measurements()
        self.staleness = None if training.staleness is None else StalenessMeter(training.staleness)
        self.versions_allowed: float = 1
        self._restored_statistics: dict[str, Mapping[str, Tensor]] = {}

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Name of a statistic -> weight name -> its state: the method's, or until one is entered, those restored."""
        current = self.weights.statistic
        return self._restored_statistics if current is None else {current.name: current.state()}

    @property
    def state_of(self) -> int:
        """Index of the replica whose state the stage saves and loads: its own if replicas train alone, else 0."""
        return 0 if self.replica_weights is None else self.replica

    @property
    def updates(self) -> int:
        """Number of updates that made the newest weights."""
        return self.weights.newest.number

    def enter(self, method: Method, context: StageContext, start: int, *, fresh: bool, predicts: bool) -> None:
        """Enters a phase: its method's statistic lasts from here through all drains up to the next phase.

        Args:
            method: of the phase.
            context: of the stage under the phase's schedule.
            start: updates before the phase.
            fresh: True if the phase begins here, False if it resumes from a checkpoint.
            predicts: True if this phase or a later one predicts with the optimizer's state.
        """
        self.optimizer.scale = lambda update: (
            method.learning_rate_scale(context, update - start) * context.rate_factor(update - start)
        )
        self.optimizer.stride = context.replicas
        self.optimizer.keep_last_gradients(enabled=predicts)
        statistic = self.weights.statistic = method.statistic(context, self.weights.trainable)
        if statistic is not None and not fresh and statistic.name in self._restored_statistics:
            statistic.load_state(self._restored_statistics[statistic.name])
        self._restored_statistics = {}
        self.versions_allowed = method.weight_versions(context)
        self.weights.meter.mark(self.versions_allowed)

    def begin_list(self, minibatches: int) -> None:
        """Sets the number of versions and steps to the minibatches of the run so far: replicas make fewer updates."""
        self.weights.newest.number = self.optimizer.updates = minibatches

    def leaves(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """New autograd leaves over the memory of `tensors`, requiring a gradient like the parameters."""
        return new_leaves_sharing_memory(tensors, self.requires_grad)

    def attach_gradients(self, leaves: Mapping[str, Tensor]) -> None:
        """Lets the next backward add to the minibatch's gradient at these leaves, by weight name."""
        if self.gradients.empty:
            # the gradients need the memory of a set of weights, so the pool must not hold a free set as well
            self.weights.pool.trim()
        self.gradients.attach(leaves)

    def update(self, minibatch: int, gradients: dict[str, Tensor], *, keep: bool, steady: bool) -> None:
        """U: one optimizer step; `keep` if a later operation still reads the present version.

        Raises:
            InvariantError: more weight versions were alive than the method may hold.
        """
        self.measurements.settle(minibatch, self.updates, steady=steady)
        with self.staleness.updating(minibatch, gradients, self.weights) if self.staleness else nullcontext():
            self.weights.update(gradients, keep=keep)
        alive = self.weights.meter.versions_since
        if alive > self.versions_allowed:
            raise InvariantError(
                f"stage {self.index} held {alive} weight versions before update {self.updates}; its method may hold "
                f"{self.versions_allowed}"
            )

    @cached_property
    def tied(self) -> dict[str, str]:
        """Local name -> full name of the weights shared with other stages."""
        names = {tie.name for tie in self.ties if self.index in tie.stages}
        return {local: self.full_names[local] for local in self.optimizer.parameters if self.full_names[local] in names}

    @cached_property
    def copied(self) -> frozenset[str]:
        """Full names of the weights that an earlier stage holds, too, and counts and saves."""
        return frozenset(tie.name for tie in self.ties if self.index in tie.stages[1:])

    @property
    def tied_gradients(self) -> dict[str, Tensor]:
        """Gradients of shared weights in this stage, by full name."""
        sums = self.gradients.tensors
        return {full: sums[local] for local, full in self.tied.items() if local in sums}

    def take_over(self, totals: Mapping[str, Tensor]) -> None:
        """Replaces the gradients of shared weights by their sums over all stages."""
        sums = self.gradients.tensors
        sums.update({local: totals[full] for local, full in self.tied.items() if full in totals})

    def counted(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients, by local name, that this stage adds to a norm over all stages; a shared weight counts once."""
        return {local: each for local, each in gradients.items() if self.full_names[local] not in self.copied}

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Newest weights and buffers by full name; the tensors themselves."""

    def not_finite(self) -> str | None:
        """Full name of a trainable weight that holds NaN or infinity; None if all are finite. Waits for the device."""
        weights = self.weights.trainable
        if math.isfinite(squared_norm(weights).item()):  # which costs a tenth of a look at each value
            return None
        return next((self.full_names[name] for name, weight in weights.items() if not weight.isfinite().all()), None)

    @property
    def averages(self) -> dict[str, Tensor]:
        """Full name -> the average of a weight, not copied; empty if nothing is averaged."""
        average = self.weights.average
        return {} if average is None else {self.full_names[local]: each for local, each in average.tensors.items()}

    def resume_at(self, updates: int, statistics: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continues from a checkpoint after `updates`, whose weights and optimizer state have been restored.

        `statistics` are the states of running statistics by name, for the phase that the stage enters next.
        """
        self.begin_list(updates)
        self._restored_statistics = dict(statistics)

    def report(self) -> dict[str, Any]:
        """Measured weight versions, bytes of weights and activations, and staleness, for `summary.json`.

        May be called in another thread than the stage's.
        """
        return {
            "weight_versions_max": self.weights.meter.versions_max,
            "weight_bytes_peak": self.weights.meter.bytes_peak,
            "activation_bytes_peak": self.measurements.activation_bytes_peak,
            "forward_staleness": sorted(self.measurements.forward_staleness),
            "backward_staleness": sorted(self.measurements.backward_staleness),
            **(self.scaler.report() if self.scaler is not None else {}),
            **({"average_bytes": self.weights.average.bytes} if self.weights.average is not None else {}),
            **(self.messages.report() if self.messages is not None else {}),
            **(self.replica_weights.report() if self.replica_weights is not None else {}),
        }


def separate_storages(parameters: Mapping[str, nn.Parameter]) -> None:
    """Gives every parameter its own storage, by which saved tensors are recognized."""
    seen: set[int] = set()
    for parameter in parameters.values():
        storage = parameter.untyped_storage()
        whole = storage.nbytes() == parameter.nbytes and is_dense(parameter)
        if storage.data_ptr() in seen or not whole or parameter.is_conj():
            parameter.data = dense_copy(parameter.data)
        seen.add(parameter.untyped_storage().data_ptr())
