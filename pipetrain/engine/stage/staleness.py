"""Distances between the weights that a minibatch reads and those that its gradient updates, measured in a run."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pipetrain.engine.device_queue import numbers
from pipetrain.engine.program.trace import COSINE, DISTANCES, RELATIVE
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.schedules import Kind
from pipetrain.engine.tensors import as_real
from pipetrain.engine.weights.versions import Weights


class _Applied(NamedTuple):
    """Copies of the gradient of a minibatch, as it was applied, and of the weights that it updated."""

    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class MeasuredMinibatches:
    """The minibatches that a run measures.

    Attributes:
        every: number n: every n-th minibatch is measured, counted from 1.
        with_gradients: True to compare their gradients with those on the newest weights as well.
    """

    every: int
    with_gradients: bool = False


class StalenessMeter:
    """Measures a stage's first microbatch of some minibatches; its trainable weights count as one vector.

    W_F and W_B are the newest weights when the forward and the backward start, Ŵ_F and Ŵ_B those that they read.

    Copies of W_F and Ŵ_F last from the forward to the backward. They are no versions: `StorageMeter` does not count
    them. Norms stay on the device until they are taken, so that the host does not wait for it.

    Attributes:
        with_gradients: True to keep what `compare` needs.
        applied: minibatch -> what was applied, until it is compared.
    """

    def __init__(self, measured: MeasuredMinibatches) -> None:
        self._every = measured.every
        # copies from the moment of a forward: the newest weights, and those that it read
        self._at_forward: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        self._at_backward: dict[int, dict[str, Tensor]] = {}
        self._complete: dict[int, dict[str, Tensor]] = {}
        self.with_gradients = measured.with_gradients
        self.applied: dict[int, _Applied] = {}

    def observe(self, kind: Kind, microbatch: tuple[int, int | None], read: WeightRead, weights: Weights) -> None:
        """Takes note of an operation that is about to read its weights.

        `microbatch` is counted over the run; None in the backward of a whole minibatch.
        """
        minibatch, first = microbatch[0], not microbatch[1]
        if not first or (minibatch + 1) % self._every:
            return
        if kind is Kind.FORWARD:
            newest = _copies(weights.trainable)
            plain = read.transform is None and read.version == weights.newest.number
            self._at_forward[minibatch] = newest, newest if plain else _copies(_trainable(weights, read))
        elif kind is Kind.BACKWARD:
            (newest_then, read_then), newest = self._at_forward.pop(minibatch), weights.trainable
            read_now = _trainable(weights, read)
            self._at_backward[minibatch] = {
                "weight_drift": _distance(newest_then, newest),
                "forward_error": _distance(read_then, newest),
                "backward_error": _distance(read_now, newest),
                "weight_discrepancy": _distance(read_then, read_now),
                "weight_norm": _norm(newest.values()),
            }

    @contextmanager
    def updating(self, minibatch: int, gradients: Mapping[str, Tensor], weights: Weights) -> Iterator[None]:
        """A context around the update that applies the gradient of `minibatch`, and of those before it in its round."""
        measured = [t for t in self._at_backward if t <= minibatch]
        if not measured:
            yield
            return
        # averages over replicas come in another order in each executor
        gradients = {name: gradients[name] for name in weights.optimizer.parameters if name in gradients}
        gradient, before = _norm(gradients.values()), _copies(weights.trainable)
        if self.with_gradients:
            self.applied[minibatch] = _Applied(before, _copies(gradients))
        yield
        norms = {"gradient_norm": gradient, "update_norm": _distance(weights.trainable, before)}
        for t in measured:
            self._complete[t] = {**self._at_backward.pop(t), **norms}

    def compare(self, minibatch: int, gradients: Mapping[str, Tensor]) -> None:
        """Adds the cosine between the gradient that was applied and this one; a weight without a gradient has 0."""
        applied = self.applied.pop(minibatch).gradients
        pairs = [(as_real(applied[name]), as_real(gradients[name])) for name in applied if name in gradients]
        products = [torch.sum(one.double() * other) for one, other in pairs]
        product = torch.stack(products).sum() if products else torch.zeros((), dtype=torch.float64)
        self._complete[minibatch][COSINE] = product / (_norm(applied.values()) * _norm(gradients.values()))

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """The quantities since the last call, after a drain; waits for the device."""
        complete, self._complete = self._complete, {}
        self._at_forward = {}  # read ahead for minibatches that did not come
        values = iter(numbers([norm for found in complete.values() for norm in found.values()]))
        return [(t, _with_relative({name: next(values) for name in found})) for t, found in complete.items()]


def _with_relative(found: dict[str, float]) -> dict[str, float]:
    norm = found["weight_norm"] or math.nan
    return {**found, **{f"{RELATIVE}{name}": found[name] / norm for name in DISTANCES}}


def _trainable(weights: Weights, read: WeightRead) -> dict[str, Tensor]:
    tensors = weights.peek(read.version, read.transform)
    return {name: tensors[name] for name in weights.optimizer.parameters}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    return _norm(one[name] - other[name] for name in one)


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all of them as one vector, float64, whose squares do not overflow; 0 without any."""
    norms = [torch.linalg.vector_norm(as_real(tensor), dtype=torch.float64) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), dtype=torch.float64)
