"""Metrics that are more than a share of hits, such as F1 or R²: torchmetrics' and a user's own."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest import mock

import torch
from torch import Tensor, nn

from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.failure import described


class Metric(Protocol):
    """Interface of a metric; torchmetrics' have it."""

    def update(self, *tensors: Tensor) -> object:
        """Takes the outputs of the model for a minibatch, then its targets."""

    def compute(self) -> float | Tensor:
        """The value over all that `update` took: a number, or a tensor of one element."""


@dataclass(frozen=True)
class Metrics:
    """The metrics of a run by name, as they are before an evaluation; none by default.

    Each evaluation updates copies of the `fresh` ones. Those named `lower_is_better` fall as the model improves.
    """

    fresh: Mapping[str, Metric] = field(default_factory=dict)
    lower_is_better: tuple[str, ...] = ()

    def begin(self) -> "RunningMetrics":
        """The metrics of one evaluation.

        Raises:
            RunError: a metric cannot be copied.
        """
        return RunningMetrics(self.fresh)

    def __bool__(self) -> bool:
        return bool(self.fresh)


NO_METRICS = Metrics()


class RunningMetrics:
    """Copies of metrics by name, for one evaluation.

    One process updates them in the order of the minibatches, so their bits do not depend on where the stages are.
    """

    def __init__(self, fresh: Mapping[str, Metric]) -> None:
        self._metrics: dict[str, Metric] = {}
        self._unmoved: list[nn.Module] = []
        self._drawn = torch.Generator().manual_seed(0).get_state()
        for name, metric in fresh.items():
            copies: dict[int, Any] = {}  # of all that the metric holds, such as a list of torchmetrics'
            try:
                self._metrics[name] = copy.deepcopy(metric, copies)
            except Exception as error:
                raise RunError(f"metrics.{name}: cannot be copied for an evaluation: {described(error)}") from error
            self._unmoved += [each for each in copies.values() if isinstance(each, nn.Module)]

    def __bool__(self) -> bool:
        return bool(self._metrics)

    @torch.no_grad()
    def update(self, tensors: tuple[Tensor, ...]) -> None:
        """Takes the outputs for a minibatch and its targets, all on one device.

        Raises:
            RunError: a metric raised an exception.
        """
        while self._unmoved:
            self._unmoved.pop().to(tensors[0].device)
        for name, metric in self._metrics.items():
            with _naming_metric(name), self._own_draws(), without_exchanges():
                metric.update(*tensors)

    @torch.no_grad()
    def values(self) -> dict[str, float]:
        """The value of each metric.

        Raises:
            ConfigError: a metric's value is no number.
            RunError: a metric raised an exception.
        """
        values = {}
        for name, metric in self._metrics.items():
            with _naming_metric(name), self._own_draws(), without_exchanges():
                value = metric.compute()
            if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.numel() == 1):
                kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise ConfigError(f"metrics.{name}: compute() must return a number, not {kind}")
            values[name] = float(value)
        return values

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Isolates random draws of metrics from those of the run; they are the same in each evaluation."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._drawn)
            yield
            self._drawn = torch.get_rng_state()


def without_exchanges() -> AbstractContextManager[object]:
    """Has torchmetrics leave out its exchange between processes, which here are stages and not replicas."""
    # a metric may hold metrics of torchmetrics anywhere, and all of them ask this
    return mock.patch.object(torch.distributed, "is_initialized", _no)


def _no() -> bool:
    return False


@contextmanager
def _naming_metric(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RunError(f"metrics.{name}: {described(error)}") from error
