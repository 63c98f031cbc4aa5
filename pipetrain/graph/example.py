"""The inputs that a module is traced with, and which of its outputs go to the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.engine.errors import ConfigError

SAMPLES = (5, 3)
"""Batch sizes of the two recordings, by which sizes that follow from the batch size are recognized."""


@dataclass(frozen=True)
class Example:
    """The inputs of a few samples, (samples, …) each, by the names of the forward's parameters or in their order."""

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> "Example":
        """The example of these inputs, by name or in order."""
        return cls(tuple(inputs.values()), tuple(inputs)) if isinstance(inputs, Mapping) else cls(tuple(inputs))

    @property
    def length(self) -> int | None:
        """The size of dimension 1 where that may differ between minibatches: of ids, or of sequences of features."""
        lengths = (
            tensor.shape[1]
            for tensor in self.tensors
            if tensor.ndim == 3 or (tensor.ndim == 2 and not tensor.is_floating_point())
        )
        return next((length for length in lengths if length > 2), None)

    def given_to(self, module: nn.Module) -> Any:
        """The output of a module for these inputs."""
        return module(**dict(zip(self.names, self.tensors, strict=True))) if self.names else module(*self.tensors)

    def resized(self, samples: int, length: int | None) -> "Example":
        """A number of samples, and of positions of each sequence; both are repeated from the first if necessary."""
        picked = [tensor[torch.arange(samples) % len(tensor)] for tensor in self.tensors]
        if length is not None:
            places = torch.arange(length)
            picked = [t[:, places % t.shape[1]] if self._has_length(t) else t for t in picked]
        return replace(self, tensors=tuple(picked))

    def fixed(self, *, varied: bool) -> list[tuple[int | None, ...]]:
        """The shape of each tensor, None for what may differ: the samples, and the length where it is `varied`."""
        return [
            (None, None, *tensor.shape[2:]) if varied and self._has_length(tensor) else (None, *tensor.shape[1:])
            for tensor in self.tensors
        ]

    def _has_length(self, tensor: Tensor) -> bool:
        return tensor.ndim in (2, 3) and tensor.shape[1] == self.length


def select_outputs(returned: Any, wanted: str | None) -> tuple[tuple[Tensor, ...], str | None]:
    """The tensors for the loss, and the name of the one picked by name, if any.

    A tensor is taken as it is, and a plain tuple or list as several arguments of the loss. Of a dict, a ModelOutput or
    a named tuple it is the entry `wanted`, else `logits`, else the first tensor.

    Raises:
        ConfigError: there is no such entry, or it is no tensor.
    """
    if isinstance(returned, Tensor):
        return (returned,), None
    if isinstance(returned, tuple | list) and not hasattr(returned, "_asdict") and wanted is None:
        return _all_of(returned), None
    tensors = {name: value for name, value in _entries(returned).items() if isinstance(value, Tensor)}
    if not tensors:
        raise ConfigError(f"model: the forward returns {type(returned).__name__}; a loss needs a tensor")
    if wanted is not None and wanted not in tensors:
        raise ConfigError(f"model.output={wanted}: the forward returns {', '.join(tensors)}")
    name = wanted or ("logits" if "logits" in tensors else next(iter(tensors)))
    return (tensors[name],), name if wanted or len(tensors) > 1 else None


def _all_of(returned: Sequence[Any]) -> tuple[Tensor, ...]:
    if not returned or not all(isinstance(each, Tensor) for each in returned):
        kinds = ", ".join(type(each).__name__ for each in returned)
        raise ConfigError(
            f"model: the forward returns ({kinds}), and a loss takes tensors; model.output=0 takes the first alone"
        )
    return tuple(returned)


def _entries(returned: Any) -> dict[str, Any]:
    """The entries of a dict or tuple by name or number; none of anything else."""
    if hasattr(returned, "_asdict"):
        returned = returned._asdict()
    if isinstance(returned, Mapping):
        return {str(key): value for key, value in returned.items()}
    return {str(i): value for i, value in enumerate(returned)} if isinstance(returned, tuple | list) else {}
