"""Writes checkpoints in a separate thread, from copies in host memory, while the pipeline continues."""

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from torch import Tensor

from pipetrain.device_queue import HostCopies
from pipetrain.executors.hooks import RunHooks
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.writer import Snapshot, Writer, replace_progress, save


class _State(Enum):
    """State of the thread."""

    IDLE = auto()
    WRITING = auto()
    EXCHANGING = auto()


class BackgroundWriter:
    """Writes one checkpoint at a time; all processes of a run have one, and write the same checkpoints in one order.

    Args:
        writer: this process among those that write together; its exchange is called in the thread.
        hooks: receives what the main thread does and waits for.
        published: called in the thread once a checkpoint is complete.
    """

    def __init__(self, writer: Writer, hooks: RunHooks, published: Callable[[], None] = lambda: None) -> None:
        self._writer = replace(writer, exchange=self._exchange)
        self._others = writer.exchange
        self._hooks = hooks
        self._published = published
        self._changed = threading.Condition()
        self._state = _State.IDLE
        self._step = 0
        self._error: BaseException | None = None
        self._memory: dict[str, Tensor] = {}

    def save(self, folder: Path, snapshot: Snapshot) -> None:
        """Copies what is to be saved, and has it written; first waits for the checkpoint before.

        A device makes the copies later, but before the updates queued after them; the thread waits for it.

        Raises:
            OSError: one process could not write its part of the checkpoint before.
            LostStageError: another process is gone.
        """
        self.finish()
        names, tensors = list(snapshot.tensors), list(snapshot.tensors.values())
        copies = HostCopies(tensors, [self._memory.get(name) for name in names])
        rest = replace(snapshot, tensors={}, progress=deepcopy(snapshot.progress))

        def held() -> Snapshot:
            return replace(rest, tensors=dict(zip(names, copies.take(), strict=True)))

        def write() -> None:
            snapshot = held()
            # of a device's tensors; to lock memory again for each checkpoint would take long
            self._memory = {name: tensor for name, tensor in snapshot.tensors.items() if tensor.is_pinned()}
            save(folder, snapshot, self._writer)

        self._start(folder, write)

    def save_progress(self, folder: Path, progress: Mapping[str, Any]) -> None:
        """Has the progress of a checkpoint that is complete, or being written, replaced; by one process alone.

        Raises:
            OSError: one process could not write its part of the checkpoint before.
            LostStageError: another process is gone.
        """
        self.finish()
        copied = deepcopy(progress)
        self._start(folder, lambda: replace_progress(folder, copied))

    def check(self) -> None:
        """Reports a checkpoint that failed, without waiting for one that is being written.

        Raises:
            OSError: one process could not write its part.
            LostStageError: another process is gone.
        """
        if self._error is not None and self._state is _State.IDLE:
            error, self._error = self._error, None
            raise error

    def finish(self) -> None:
        """Waits until the checkpoint that is being written is complete.

        Raises:
            OSError: one process could not write its part.
            LostStageError: another process is gone.
        """
        hooks = self._hooks
        with self._changed:
            while (state := self._state) is not _State.IDLE:
                if state is _State.EXCHANGING:
                    with hooks.waiting(f"the others' parts of the checkpoint of step {self._step}"):
                        self._changed.wait_for(lambda: self._state is not _State.EXCHANGING)
                else:
                    hooks.on_progress(f"writing the checkpoint of step {self._step}")
                    self._changed.wait_for(lambda: self._state is not _State.WRITING)
        self.check()

    def settle(self, seconds: float) -> None:
        """Gives the checkpoint that is being written some time to become complete, as the run is about to fail."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is _State.IDLE, seconds)

    def _start(self, folder: Path, write: Callable[[], None]) -> None:
        self._step, self._state = store.step_of(folder), _State.WRITING
        threading.Thread(target=self._publish, args=(write,), name="checkpoint", daemon=True).start()

    def _publish(self, write: Callable[[], None]) -> None:
        try:
            write()
            self._published()
        except BaseException as error:  # which the main thread reports
            self._error = error
        finally:
            self._become(_State.IDLE)

    def _exchange(self, value: Any) -> list[Any]:
        self._become(_State.EXCHANGING)
        try:
            return self._others(value)
        finally:
            self._become(_State.WRITING)

    def _become(self, state: _State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()
