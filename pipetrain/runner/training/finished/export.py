"""`pipetrain export RUN -o FILE`: a run's weights as a plain state dict, under the names of the user's own module."""

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.tensors import differentiable
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.training.checkpoint import contents, store, tensor_file
from pipetrain.runner.training.checkpoint.store import Selection

LOADERS = {"torch": "torch.load", "safetensors": "safetensors"}
"""Format of the file -> the library or function that loads it."""
_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")


def format_of(path: Path) -> str:
    """The format that a file's name says; raises a ConfigError if the name says a format that is not in `LOADERS`."""
    if path.suffix == tensor_file.SUFFIX:
        return "safetensors"
    if path.suffix in ("", *_OF_TORCH):
        return "torch"
    raise ConfigError(
        f"-o {path}: no format for {path.suffix}; use {tensor_file.SUFFIX}, or for torch.load one of "
        f"{', '.join(_OF_TORCH)}, or choose the format with --format"
    )


def export(selection: Selection, path: Path, file_format: str) -> str:
    """Writes the file, which loads without pipetrain, and describes its content. No code of the run is called.

    Raises:
        ConfigError: there is no such run or checkpoint.
        OSError: the file cannot be written.
    """
    folder = selection.checkpoint()
    state = contents.named_state(folder, averaged=not selection.raw)
    write_whole(path, _content(state, file_format))
    parameters = sum(tensor.numel() for tensor in state.values() if differentiable(tensor))
    written = f"{path}: {len(state)} tensors, {parameters:,} values, for {LOADERS[file_format]}, from {folder}"
    if note := contents.averages_note(folder, raw=selection.raw):
        written += f", {note}"
    untied = store.load_progress(folder).get("untied", {})
    if not untied:
        return one_line(written)
    pairs = ", ".join(f"{was} and {name} have values of their own" for name, was in untied.items())
    warning = f"warning: model.untie=true: {pairs}; a model that ties them keeps the value that it loads last"
    return f"{one_line(written)}\n{one_line(warning)}"


def _content(state: Mapping[str, Tensor], file_format: str) -> bytes:
    if file_format == "safetensors":
        return tensor_file.content(state)
    buffer = io.BytesIO()  # torch.save reports a full disk unclearly when it writes the file itself
    apart = {id(tensor): tensor.clone() for tensor in state.values()}  # else it saves all that is mapped
    torch.save({name: apart[id(tensor)] for name, tensor in state.items()}, buffer)
    return buffer.getvalue()
