"""`pipetrain export RUN -o FILE`: a run's weights as a plain state dict, under the names of the user's own module."""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.errors import ConfigError
from pipetrain.run.checkpoint import contents, store, tensor_file
from pipetrain.run.finished.selection import Selection

_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")


class Format(StrEnum):
    """File format, by the library that loads it."""

    TORCH = "torch"
    """`torch.load`."""
    SAFETENSORS = "safetensors"
    """`safetensors.torch.load_file`."""

    @property
    def loader(self) -> str:
        """Name of the loader."""
        return "torch.load" if self is Format.TORCH else "safetensors"

    @classmethod
    def of(cls, path: Path) -> "Format":
        """The format that a file's name says.

        Raises:
            ConfigError: it says another one.
        """
        if path.suffix == tensor_file.SUFFIX:
            return cls.SAFETENSORS
        if path.suffix in ("", *_OF_TORCH):
            return cls.TORCH
        raise ConfigError(
            f"-o {path}: no format for {path.suffix}; use {tensor_file.SUFFIX}, or for torch.load one of "
            f"{', '.join(_OF_TORCH)}, or choose the format with --format"
        )


@dataclass(frozen=True)
class Output:
    """Destination of an export.

    Attributes:
        path: the file.
        format: what it is for.
        force: True to replace a file that is there.
    """

    path: Path
    format: Format
    force: bool = False

    def check(self) -> None:
        """Checks what can be wrong before anything is read.

        Raises:
            ConfigError: there is no such folder, or something is in the way.
        """
        folder = self.path.resolve().parent
        if not folder.is_dir():
            raise ConfigError(f"-o {self.path}: there is no folder {folder}; make it first")
        if self.path.is_dir():
            raise ConfigError(f"-o {self.path}: is a folder; name a file in it, such as {self.path / 'weights.pt'}")
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"-o {self.path}: is not a regular file")
        if self.path.exists() and not self.force:
            raise ConfigError(f"-o {self.path}: exists; --force replaces it")

    def write(self, state: Mapping[str, Tensor]) -> None:
        """Writes the file in one rename, so that none is ever half there.

        Raises:
            OSError: it cannot be written.
        """
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            if self.format is Format.SAFETENSORS:
                tensor_file.write(partial, state)
            else:
                partial.write_bytes(_pickled(state))
            partial.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def export(selection: Selection, output: Output) -> str:
    """Writes the file, which loads without pipetrain, and describes its content. No code of the run is called.

    Raises:
        ConfigError: there is no such run or checkpoint, or the file cannot go there.
        OSError: the file cannot be written.
    """
    output.check()
    folder = selection.checkpoint()
    state = contents.named_state(folder)
    output.write(state)
    untied = store.load_progress(folder).get("untied", {})
    parameters = sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())
    written = f"{output.path}: {len(state)} tensors, {parameters:,} values, for {output.format.loader}"
    return f"{written}, from {folder}{_warning(untied)}"


def _warning(untied: Mapping[str, str]) -> str:
    """Warning about weights that are tied in the model and separate in the file."""
    pairs = [f"{was} and {name} have values of their own" for name, was in untied.items()]
    kept = "a model that ties them keeps the value that it loads last"
    return f"\nwarning: model.untie=true: {', '.join(pairs)}; {kept}" if pairs else ""


def _pickled(state: Mapping[str, Tensor]) -> bytes:
    """Bytes of torch.save, which reports a full disk unclearly when it writes the file itself."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()
