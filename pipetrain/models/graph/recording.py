"""One recording of a module's forward, on a copy of the module."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import fx, nn

from pipetrain.errors import ConfigError
from pipetrain.failure import described
from pipetrain.models.graph.copies import Copies
from pipetrain.models.graph.example import Example
from pipetrain.models.graph.outputs import selected
from pipetrain.models.graph.place import line_of
from pipetrain.models.graph.python_state import Held, Place, changes, generators, python_state
from pipetrain.models.graph.recorder import Recorder, UntraceableError, WholeModuleError
from pipetrain.models.graph.watching import Change, Watch
from pipetrain.seeding import python_generators_kept


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
        changes: the places where Python keeps something else after the forward than before.
    """

    graph: fx.Graph
    picked: str | None
    changes: Sequence[Place] = ()


class Studio:
    """Where forwards of one copy of a module are recorded, one after the other.

    Args:
        copies: of the module.
        opaque: classes of modules that are called as a whole.
        output: the entry of what it returns that goes to the loss; None: see `outputs.selected`.
        training: in which mode.
    """

    def __init__(self, copies: Copies, opaque: tuple[type, ...], output: str | None, *, training: bool) -> None:
        self._copies = copies
        self._opaque = opaque
        self._output = output
        self._training = training
        self.module = copies.module(training=training)
        self._state: dict[Place, Held] = {}

    def recorded(self, example: Example) -> Recording:
        """Records the forward for these inputs; numbers that Python or numpy draw are the same every time.

        Raises:
            NeedsValuesError: another recording, with values, is needed.
            CannotEnterError: another one is, or none is possible.
            ConfigError: the forward fails, or returns no tensor.
        """
        before = {**(self._state or python_state(self.module)), **generators()}
        with python_generators_kept():
            recording = self._recorded(example, self._recorder())
            drawn = generators()
        self._state = python_state(self.module)
        return replace(recording, changes=changes(before, {**self._state, **drawn}, _read(recording.graph)))

    def watched(self, example: Example, places: Sequence[Place]) -> list[Change]:
        """What code that a graph does not repeat changes of these places in a forward for these inputs."""
        recorder = self._recorder()
        watch = Watch(places, self.module, recorder)
        with python_generators_kept(), watch:
            self._recorded(example, recorder)
        return watch.changes

    def _recorder(self) -> Recorder:
        with_values = None if self._copies.have_values else partial(self._copies.returned, training=self._training)
        return Recorder(self.module, self._opaque, with_values)

    def _recorded(self, example: Example, recorder: Recorder) -> Recording:
        try:
            return self._performed(example, recorder)
        except ConfigError:
            raise
        except UntraceableError as error:
            raise CannotEnterError(recorder.failed_in, f"{error} ({error.line})") from error
        except Exception as error:
            raise self._meaning(error, recorder.failed_in) from error

    def _performed(self, example: Example, recorder: Recorder) -> Recording:
        with self._copies.mode, torch.set_grad_enabled(self._training):
            tensors = [self._copies.tensor(tensor) for tensor in example.tensors]
            for name, tensor in zip(example.names or map(_numbered, range(len(tensors))), tensors, strict=True):
                recorder.argument(tensor, name)
            named = dict(zip(example.names, tensors, strict=False))
            with recorder.recording():
                returned = self.module(**named) if named else self.module(*tensors)
            outputs, picked = selected(returned, self._output)
            recorder.graph.output(tuple(recorder.node_of(tensor) for tensor in outputs))
        return Recording(recorder.graph, picked)

    def _meaning(self, error: Exception, entered: nn.Module | None) -> Exception:
        """What an error of the forward tells: without values, any module may fail that needs them."""
        whole = isinstance(error, WholeModuleError)
        cause = (error.__cause__ if whole else None) or error
        if self._copies.have_values:
            name = type(self._copies.model).__name__
            return ConfigError(f"model: {name} fails on the first samples: {described(cause)} ({line_of(cause)})")
        if whole or entered is None or entered is self.module:
            return NeedsValuesError()
        return CannotEnterError(entered, f"it computes with values ({line_of(error)})")


def _read(graph: fx.Graph) -> set[Place]:
    """The attributes whose tensors a graph reads."""
    constants = (node.target for node in graph.nodes if node.op == "get_attr" and node.meta["constant"])
    return {Place(*str(name).rpartition(".")[0].rpartition(".")[::2]) for name in constants}


def _numbered(i: int) -> str:
    return f"input_{i}"
