"""Checkpoints as the processes of a run write them."""

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint.writer import Snapshot, Writer, save

ALONE = Writer(0, lambda value: [value], coordinates=True)
"""The only process."""
NAMES = {"model": "small", "dataset": "synthetic_images"}
"""What else the progress of any checkpoint has."""
NO_CONFIG: dict[str, Any] = {"settings": {}, "choices": {}}


def written(run: Path, step: int, tensors: Mapping[str, Tensor], **progress: Any) -> Path:
    """The folder of a checkpoint that this has written into a run directory."""
    run.mkdir(parents=True, exist_ok=True)
    folder = RunDirectory(run).checkpoint(step)
    save(folder, Snapshot(tensors, {"step": step, **NAMES, **progress}, NO_CONFIG), ALONE)
    return folder


class Processes:
    """Writers in threads of this process; the last one coordinates."""

    def __init__(self, count: int) -> None:
        self._values: list[Any] = [None] * count
        self._barrier = threading.Barrier(count, timeout=10)

    def writer(self, rank: int) -> Writer:
        def exchange(value: Any) -> list[Any]:
            self._values[rank] = json.loads(json.dumps(value))  # as they travel
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
            return values

        return Writer(rank, exchange, coordinates=rank == len(self._values) - 1)

    def save(self, folder: Path, parts: Sequence[Mapping[str, Tensor]], step: int = 1) -> list[BaseException | None]:
        """Writes a checkpoint; the error of each writer."""
        with ThreadPoolExecutor(len(parts)) as pool:
            snapshots = [Snapshot(part, {"step": step, **NAMES}, NO_CONFIG) for part in parts]
            jobs = [pool.submit(save, folder, each, self.writer(rank)) for rank, each in enumerate(snapshots)]
        return [job.exception() for job in jobs]
