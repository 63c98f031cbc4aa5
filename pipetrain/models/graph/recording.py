"""One recording of a module's forward, on a copy of the module."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import fx, nn

from pipetrain.errors import ConfigError
from pipetrain.failure import described
from pipetrain.models.graph.copies import Copies
from pipetrain.models.graph.example import Example
from pipetrain.models.graph.outputs import selected
from pipetrain.models.graph.place import line_of
from pipetrain.models.graph.recorder import Recorder, UntraceableError, WholeModuleError


class NeedsValuesError(Exception):
    """The module cannot be computed with tensors that have shapes and no values."""


@dataclass
class CannotEnterError(Exception):
    """A module that must be called as a whole.

    Attributes:
        module: None for none in particular.
        reason: with the user's line.
    """

    module: nn.Module | None
    reason: str


@dataclass(frozen=True)
class Recording:
    """What was recorded.

    Attributes:
        graph: its nodes' `meta` is what the recorder knows of them.
        picked: the name of the output that goes to the loss, where there are others.
    """

    graph: fx.Graph
    picked: str | None


class Studio:
    """Where one forward is recorded.

    Args:
        copies: of the module.
        opaque: classes of modules that are called as a whole.
        output: the entry of what it returns that goes to the loss; None: see `outputs.selected`.
        training: in which mode.
    """

    def __init__(self, copies: Copies, opaque: tuple[type, ...], output: str | None, *, training: bool) -> None:
        self._copies = copies
        self._output = output
        self._training = training
        self._module = copies.module(training=training)
        with_values = None if copies.have_values else partial(copies.returned, training=training)
        self._recorder = Recorder(self._module, opaque, with_values)

    def recorded(self, example: Example) -> Recording:
        """Records the forward for these inputs.

        Raises:
            NeedsValuesError: another recording, with values, is needed.
            CannotEnterError: another one is, or none is possible.
            ConfigError: the forward fails, or returns no tensor.
        """
        try:
            return self._recorded(example)
        except ConfigError:
            raise
        except UntraceableError as error:
            raise CannotEnterError(self._recorder.failed_in, f"{error} ({error.line})") from error
        except Exception as error:
            raise self._meaning(error) from error

    def _recorded(self, example: Example) -> Recording:
        with self._copies.mode, torch.set_grad_enabled(self._training):
            tensors = [self._copies.tensor(tensor) for tensor in example.tensors]
            for name, tensor in zip(example.names or map(_numbered, range(len(tensors))), tensors, strict=True):
                self._recorder.argument(tensor, name)
            named = dict(zip(example.names, tensors, strict=False))
            with self._recorder.recording():
                returned = self._module(**named) if named else self._module(*tensors)
            outputs, picked = selected(returned, self._output)
            self._recorder.graph.output(tuple(self._recorder.node_of(tensor) for tensor in outputs))
        return Recording(self._recorder.graph, picked)

    def _meaning(self, error: Exception) -> Exception:
        """What an error of the forward tells: without values, any module may fail that needs them."""
        whole = isinstance(error, WholeModuleError)
        cause = (error.__cause__ if whole else None) or error
        if self._copies.have_values:
            name = type(self._copies.model).__name__
            return ConfigError(f"model: {name} fails on the first samples: {described(cause)} ({line_of(cause)})")
        entered = self._recorder.failed_in
        if whole or entered is None or entered is self._module:
            return NeedsValuesError()
        return CannotEnterError(entered, f"it computes with values ({line_of(error)})")


def _numbered(i: int) -> str:
    return f"input_{i}"
