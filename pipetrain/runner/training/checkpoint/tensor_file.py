"""A file of named tensors in the safetensors format, which holds names, shapes and numbers, and nothing that runs."""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.tensors import dense

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
        if (number := re.search(r"(?:os error |code: )(\d+)", str(error))) is None:
            raise OSError(str(error)) from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(rights)  # the library puts a file in its place that only the owner may read


def content(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a file of these tensors."""
    data: bytes = save(_apart(tensors))
    return data


def mapped(places: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, on the CPU, in the order of `places`, which has the file of each name.

    Their memory is the file, mapped: a value is read when it is used. A file is opened once for all names in a row.

    Raises:
        ConfigError: a file is not a safetensors file.
    """
    for path, of_file in groupby(places, places.__getitem__):
        try:
            with safe_open(path, framework="pt") as file:
                for name in of_file:
                    yield name, file.get_tensor(name)
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
        own = dense(tensor.detach().cpu()).contiguous()
        if own.untyped_storage().data_ptr() in storages:
            own = own.clone()
        storages.add(own.untyped_storage().data_ptr())
        apart[name] = own
    return apart
