"""A file of named tensors in the safetensors format, which holds names, shapes and numbers, and nothing that runs."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor
from typing_extensions import override

from pipetrain.errors import ConfigError

SUFFIX = ".safetensors"


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes the tensors, wherever they are in memory and on whatever device.

    Raises:
        OSError: the file cannot be written.
    """
    path.touch()
    rights = path.stat().st_mode
    try:
        save_file(_apart(tensors), path)
    except SafetensorError as error:
        raise _os_error(error, path) from error
    path.chmod(rights)  # the library puts a file in its place that only the owner may read


def read(path: Path, selects: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors whose names `selects` accepts, on the CPU.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            # the library's tensors are views of the mapped file
            return {name: file.get_tensor(name).clone() for name in file.keys() if selects(name)}  # noqa: SIM118
    except SafetensorError as error:
        raise ConfigError(f"{path}: not a safetensors file: {error}") from error


def takes(dtype: torch.dtype) -> bool:
    """True if such files can hold tensors of this type."""
    try:
        save({"": torch.empty(0, dtype=dtype)})
    except (KeyError, SafetensorError):
        return False
    return True


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as the library takes them: on the CPU, contiguous, each in its own storage."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        if dense.untyped_storage().data_ptr() in storages:
            dense = dense.clone()
        storages.add(dense.untyped_storage().data_ptr())
        apart[name] = dense
    return apart


def _os_error(error: SafetensorError, path: Path) -> OSError:
    """The library's error of a file that it cannot write, as Python's own functions raise it."""
    found = re.search(r"(?:os error |code: )(\d+)", str(error))
    if found is None:
        return OSError(str(error))
    return OSError(int(found[1]), os.strerror(int(found[1])), str(path))


class Kind(StrEnum):
    """Kind of a tensor in a checkpoint."""

    MODEL = "model"
    """A weight or buffer."""
    OPTIMIZER = "optimizer"
    """An entry of the optimizer's state of a weight."""
    STATISTIC = "statistic"
    """A weight's entry of a method's statistic."""
    CARRIED = "carried"
    """Recurrent state that a layer carries from minibatch to minibatch."""
    SCALER = "scaler"
    """The factor of a scaled loss, of a stage: it is named after its layers."""
    HISTORY = "run"
    """A series that the run has recorded."""


_KEYED = (Kind.OPTIMIZER, Kind.STATISTIC, Kind.CARRIED)


@dataclass(frozen=True)
class TensorName:
    """The name of one tensor, such as `model.conv.weight` or `optimizer.conv.weight/exp_avg`.

    Attributes:
        kind: what it is.
        of: the weight, the buffer, the layer or the series that it belongs to, as the whole model or the run calls it.
        key: the entry of the optimizer's state, the name of the statistic, or the number of the layer's tensor; else
            empty.
    """

    kind: Kind
    of: str
    key: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.kind}.{self.of}/{self.key}" if self.kind in _KEYED else f"{self.kind}.{self.of}"

    @classmethod
    def parse(cls, name: str) -> "TensorName":
        """The name that prints as `name`."""
        kind, _, rest = name.partition(".")
        of, _, key = rest.rpartition("/") if kind in _KEYED else (rest, "", "")
        return cls(Kind(kind), of, key)
