"""Reading the samples of one minibatch, each with its own random numbers, and collating them."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from pipetrain.data.interface import Split
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.data.samples import naming_errors, sample_of, target_of
from pipetrain.engine.arithmetic import torch_threads
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.seeding import key, python_draws, python_generators_kept, seed_python
from pipetrain.engine.tensors import Tensors

Minibatch = tuple[Tensors, Tensors]
"""Inputs and targets, each without tensors if it was not asked for."""

_NUMBER_DTYPES = {bool: "bool", int: "int64", float: "float64"}
"""dtypes of the tensors that `default_collate` makes of Python's numbers."""

_USABLE = (Tensor, np.ndarray, np.generic, bool, int, float, tuple, list, Mapping)
_LONG = 8
"""Length of a list from which equal elements are described once."""


@dataclass(frozen=True)
class Fetch:
    """Reads minibatches of `dataset`: their inputs, their targets, or both. Can be pickled if the data set can.

    Attributes:
        stored: True to read samples as they are stored, if the data set says how.
        drawn: has True if a sample has drawn from Python's or numpy's generator; empty before the first read.
    """

    dataset: Any
    seed: int
    inputs: bool
    targets: bool
    labels: LabelRange | None = None
    tokens: TokenRange | None = None
    stored: bool = False
    drawn: list[bool] = field(default_factory=list)

    @property
    def decodes(self) -> bool:
        """True if samples must be read; a data set's own `target(i)` gives the targets without."""
        split = Split(self.dataset)
        return self.inputs or split.target is None or split.collate is not None

    def __call__(self, epoch: int, indices: Sequence[int]) -> Minibatch:
        """The samples `indices` as they are in `epoch`, collated.

        Raises:
            ConfigError: they do not fit together, or a label or token id is out of range.
            DataError: the data set's code raised an exception.
        """
        with torch_threads(1):  # as in a DataLoader's workers: sums would have other bits
            inputs, targets = self._read(epoch, indices)
        if any(each.requires_grad for each in (*inputs, *targets)):
            raise ConfigError("dataset: samples require gradients; return tensor.detach()")
        if inputs and self.tokens is not None:
            self.tokens.check(inputs, indices)
        if targets and self.labels is not None:
            self.labels.check(targets[0], indices)
        return inputs, targets

    def names(self) -> tuple[str, ...]:
        """The names of the inputs, where a sample or the data set's `collate` gives a dict of them."""
        pairs = self._pairs(0, [0])
        if (collate := Split(self.dataset).collate) is None:
            inputs = pairs[0][0]
        else:
            with naming_errors(f"{type(self.dataset).__name__}.collate of sample 0"), generator_kept():
                inputs = collate(pairs)[0]
        return tuple(inputs) if isinstance(inputs, Mapping) else ()

    def pair(self, epoch: int, index: int) -> Sequence[Any]:
        """A sample as the data set returns it in `epoch`, input and target."""
        return self._pairs(epoch, [index])[0]

    def _read(self, epoch: int, indices: Sequence[int]) -> Minibatch:
        if not self.decodes:
            return (), _collate([target_of(self.dataset, index) for index in indices], "targets", indices)
        pairs = self._pairs(epoch, indices)
        if (collate := Split(self.dataset).collate) is not None:
            seed = key(self.seed, epoch, *indices)
            with generator_kept() as generator, python_generators_kept():
                seed_python(seed)
                generator.manual_seed(seed)
                inputs, targets = _by_data_set(collate, type(self.dataset).__name__, pairs, indices)
            return inputs if self.inputs else (), targets if self.targets else ()
        return (
            _collate([pair[0] for pair in pairs], "inputs", indices) if self.inputs else (),
            _collate([pair[1] for pair in pairs], "targets", indices) if self.targets else (),
        )

    def _pairs(self, epoch: int, indices: Sequence[int]) -> list[Sequence[Any]]:
        """The samples, each with its own random numbers from torch, Python and numpy.

        Seeding Python and numpy takes longer than reading a small sample, so the samples are first read without, and
        once more if one has drawn.
        """
        read = Split(self.dataset).stored if self.stored else None
        with generator_kept() as generator:
            if True not in self.drawn:
                # the first read may draw once for all later ones
                first = not self.drawn
                with python_draws(self.seed) if first else python_generators_kept() as drawn:
                    pairs = [self._pair(generator, epoch, index, read) for index in indices]
                if first or any(drawn):
                    self.drawn.append(any(drawn))
                if not any(drawn):
                    return pairs
            pairs = []
            with python_generators_kept():
                for index in indices:
                    seed_python(key(self.seed, epoch, index))
                    pairs.append(self._pair(generator, epoch, index, read))
        return pairs

    def _pair(
        self, generator: torch.Generator, epoch: int, index: int, read: Callable[[int], Any] | None
    ) -> Sequence[Any]:
        # torch.manual_seed would seed every device, in 300 µs instead of 2
        generator.manual_seed(key(self.seed, epoch, index))
        return sample_of(self.dataset, index, read)


@contextmanager
def generator_kept() -> Iterator[torch.Generator]:
    """torch's default generator; afterwards it is where it was, as layers of this process draw from it, too."""
    generator = torch.default_generator
    state = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(state)


def _by_data_set(
    collate: Callable[..., Any], owner: str, pairs: list[Sequence[Any]], indices: Sequence[int]
) -> Minibatch:
    with naming_errors(f"{owner}.collate of samples {indices[0]} to {indices[-1]}"):
        collated = collate(pairs)
    if not isinstance(collated, tuple | list) or len(collated) != 2:
        raise ConfigError(f"dataset: {owner}.collate must return (inputs, targets), not {form_of(collated)}")
    inputs, targets = (tuple(_flattened(side)) for side in collated)
    rows = [len(tensor) if isinstance(tensor, Tensor) and tensor.ndim else None for tensor in (*inputs, *targets)]
    if not inputs or not targets or set(rows) != {len(pairs)}:
        raise ConfigError(
            f"dataset: {owner}.collate made {form_of(collated)} of {len(pairs)} samples; inputs and "
            "targets must be tensors, or tuples of them, with a row for each sample"
        )
    return inputs, targets


def _collate(values: list[Any], side: str, indices: Sequence[int]) -> Tensors:
    try:
        tensors = tuple(_flattened(default_collate(values)))
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, RuntimeError) and len(set(map(form_of, values))) == 1:
            raise  # nothing is wrong with the samples: memory that cannot be had, for instance
        raise ConfigError(f"dataset: {_difference(values, side, indices)}") from error
    if not _alike(values) or not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise ConfigError(f"dataset: {_difference(values, side, indices)}")
    return tensors


def _alike(values: Sequence[Any]) -> bool:
    """True if dicts have their keys in one order, as their tensors are passed on in it, and one set of dtypes."""
    orders = {tuple(value) for value in values} if isinstance(values[0], Mapping) else set()
    return len(orders) < 2 and len(set(map(_dtypes, values))) == 1


def _flattened(collated: Any) -> Iterator[Any]:
    """The tensors of nested tuples and dicts, in their order."""
    if isinstance(collated, tuple | list | Mapping):
        for part in collated.values() if isinstance(collated, Mapping) else collated:
            yield from _flattened(part)
    else:
        yield collated


def _difference(values: list[Any], side: str, indices: Sequence[int]) -> str:
    for index, value in zip(indices, values, strict=True):
        if (form := form_of(value)) != form_of(values[0]):
            unlike = f"{form_of(values[0])} and {form}"
            return f"the {side} of samples {indices[0]} and {index} cannot share a minibatch: {unlike}"
    wrong = f"the {side} must be tensors, arrays or numbers, or tuples or dicts of them, not {form_of(values[0])}"
    if side != "inputs" or not isinstance(values[0], Mapping):
        return wrong
    usable = [str(key) for key, value in values[0].items() if isinstance(value, _USABLE)]
    return f"{wrong}; dataset.input_key=[{','.join(usable)}] takes these alone" if usable else wrong


def _dtypes(value: Any) -> Hashable:
    """dtypes of the tensors that `default_collate` makes of it."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, tuple | list | Mapping):
        return tuple(map(_dtypes, value.values() if isinstance(value, Mapping) else value))
    return _NUMBER_DTYPES.get(type(value))


def form_of(value: Any) -> str:
    """A value in words, for an error: its type, and where it has them its shape or the forms of its elements."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__}[{', '.join(f'{key}: {form_of(each)}' for key, each in value.items())}]"
    if isinstance(value, tuple | list):
        forms = [*map(form_of, value)]
        alike = len(forms) >= _LONG and len(set(forms)) == 1
        return f"{type(value).__name__}[{f'{len(forms)} x {forms[0]}' if alike else ', '.join(forms)}]"
    return type(value).__name__
