"""Callbacks of a run: trackers and a user's own. They are given its records, and cannot change what it computes."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipetrain.engine.errors import RunError
from pipetrain.engine.failure import USERS_ERRORS, Failure, described
from pipetrain.engine.seeding import python_generators_kept
from pipetrain.runner.tracking.records import Record


@dataclass(frozen=True)
class RunInfo:
    """Description of a run.

    Attributes:
        directory: run directory.
        settings: all settings, nested as in `config.yaml`.
        choices: choice of each group, such as {"model": "resnet20"}.
        step: number of steps that were done when the run started or resumed; 0 if it is not a resumed run.
        sweep: directory of the sweep that the run belongs to; None if there is no sweep.
    """

    directory: Path
    settings: Mapping[str, Any]
    choices: Mapping[str, str]
    step: int = 0
    sweep: Path | None = None


class Callback:
    """Base class of callbacks. Its methods do nothing; a subclass overrides those that it needs.

    They are called in the process of the last stage, in the main thread. What they are given are copies. Random draws
    from the global generators of torch, numpy and Python, and changes of torch's grad mode, do not affect the run.
    """

    def on_start(self, run: RunInfo) -> None:
        """Called once in this process, before the first step."""

    def on_record(self, record: Record) -> None:
        """Called with every record of metrics.jsonl, of any kind, before the method of its kind."""

    def on_step(self, record: Record) -> None:
        """Called with each record of kind `interval`, that is, every `log.every_steps` steps."""

    def on_epoch(self, record: Record) -> None:
        """Called with each record of kind `epoch`, before the evaluation of the epoch."""

    def on_evaluation(self, record: Record) -> None:
        """Called with each record of kind `eval`."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Called when the checkpoint after `step` steps is complete: before one of the next steps, or before the end.

        `checkpoint.keep_last` and `checkpoint.keep_best` may remove the folder later.
        """

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called once, after `summary.json` is written, with its content.

        If an exception ends the run there is no summary yet; `summary` then has `status`, `reason`, and the fields on
        steps, times, throughput and metrics.
        """

    @classmethod
    def end_run(cls, number: str, status: str) -> None:
        """Ends a tracker's run, known by its id there, whose process was killed before `on_end`."""


METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_OF_KIND = {"interval": "on_step", "epoch": "on_epoch", "eval": "on_evaluation"}
log = logging.getLogger(__name__)


class CallbackCaller:
    """Calls the methods of callbacks, one callback after the other, until they raise an exception.

    All callbacks share one state of the global random generators, separate from the run's.

    Args:
        callbacks: by the setting that names each.
        warn: called with a line on a callback that raised an exception.
        stops: True if an exception of a callback ends the run.
    """

    def __init__(self, callbacks: Mapping[str, Callback], warn: Callable[[str], None], *, stops: bool) -> None:
        self._callbacks = callbacks
        self._warn = warn
        self._stops = stops
        self._active: dict[str, Callback] = {}
        self._failures: list[str] = []
        self._drawn: tuple[Any, ...] | None = None

    def start(self, run: RunInfo) -> None:
        """Calls `on_start`; raises as `call`."""
        with self._isolated():
            for setting, callback in self._callbacks.items():
                self._active[setting] = callback
                self._call(setting, "on_start", run)

    def record(self, record: Record) -> None:
        """Calls `on_record` and the method of this kind of record; raises as `call`."""
        of_kind = _OF_KIND.get(record["kind"])
        self.call(["on_record", of_kind] if of_kind else ["on_record"], record)

    def call(self, methods: Sequence[str], *arguments: Any) -> None:
        """Calls these methods of all callbacks with copies; raises a RunError if an exception of one ends the run."""
        if self._active:
            with self._isolated():
                for method in methods:
                    for setting in list(self._active):
                        self._call(setting, method, *arguments)
        while self._failures:
            self._warn(self._failures.pop(0))  # also a record for the remaining callbacks

    def end(self, summary: Mapping[str, Any]) -> None:
        """Calls `on_end` and then nothing more; an exception is only warned of."""
        with self._isolated():
            for setting in list(self._active):
                self._call(setting, "on_end", summary)
        self._active = {}
        self.call([])

    def _call(self, setting: str, method: str, *arguments: Any) -> None:
        try:
            getattr(self._active[setting], method)(*deepcopy(arguments))
        except USERS_ERRORS as error:
            del self._active[setting]
            line = f"{setting}: {method} raised {described(error)}"
            if self._stops and method != "on_end":
                raise RunError(line) from error
            log.warning("%s\n%s", line, Failure.of(error).traceback)
            self._failures.append(line)

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with python_generators_kept(), torch.random.fork_rng(devices), torch.set_grad_enabled(torch.is_grad_enabled()):
            if self._drawn is not None:
                random.setstate(self._drawn[0])
                np.random.set_state(self._drawn[1])
                torch.set_rng_state(self._drawn[2])
            try:
                yield
            finally:
                self._drawn = random.getstate(), np.random.get_state(), torch.get_rng_state()
