"""`train.batch_size=auto`: the largest minibatch that fits the CUDA devices of a run, found by trial runs."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pipetrain.errors import ConfigError, ExitCode

AUTO = "train.batch_size=auto"
_STEPS = "train.max_steps"
_QUIET = ("eval.every_epochs=0", "checkpoint.every_epochs=0", "log.progress_seconds=0", "resume=null", "trace=false")


class TrialEnd(NamedTuple):
    """End of a trial run.

    Attributes:
        code: its exit code.
        said: what it wrote.
    """

    code: int
    said: str

    @property
    def fits(self) -> bool:
        """True if the memory was enough."""
        return self.code == ExitCode.COMPLETED

    @property
    def out_of_memory(self) -> bool:
        """True if the memory was not enough."""
        return "out of memory" in self.said.lower()

    @property
    def reason(self) -> str:
        """The last line that it wrote."""
        return (self.said.strip() or f"exit code {self.code}").splitlines()[-1]


Trial = Callable[[int], TrialEnd]
"""Samples of a minibatch -> how a run with them ends."""


def with_batch_size(words: Sequence[str]) -> list[str]:
    """The words of a run with the number in place of `auto`, where that is among them.

    Raises:
        ConfigError: the run computes on no CUDA device, or is a sweep, or no minibatch fits.
    """
    if AUTO not in words:
        return list(words)
    if "RANK" in os.environ:
        raise ConfigError(f"{AUTO}: under an outer launcher each process would try for itself; give a number")
    # from here on torch is needed, which takes seconds to import
    from pipetrain.config.composition import combinations, composed
    from pipetrain.planner.max_batch import MOST_SAMPLES
    from pipetrain.run.builders.machine import device_of

    others = [word for word in words if word != AUTO]
    if len(list(islice(combinations(others), 2))) > 1:
        raise ConfigError(f"{AUTO}: finds the batch of one run, and this is a sweep; give each a number")
    settings = composed(others)
    if len(settings.phases) > 1:
        raise ConfigError(f"{AUTO}: tries a few steps, and this run has phases; give a number")
    if device_of(settings.device) != "cuda":
        raise ConfigError(
            f"{AUTO}: tries what fits the memory of CUDA devices, and this run is on the CPU; give a number, such as "
            "`pipetrain predict --fit` finds for topology.memory_gigabytes"
        )
    stages = settings.partition.options.get("stages")
    steps = 2 * (stages if isinstance(stages, int) else 8) + 2
    found = probed([*others, f"{_STEPS}={steps}"], settings.train.microbatches, MOST_SAMPLES)
    print(f"{AUTO}: train.batch_size={found} is the largest that fits")
    return [*others, f"train.batch_size={found}"]


def probed(words: Sequence[str], step: int, most: int, trial: Trial | None = None) -> int:
    """The largest multiple of `step` with which a run of these words ends well, to a sixteenth.

    Raises:
        ConfigError: a run of `step` samples fails, too.
    """
    from pipetrain.planner.max_batch import largest_batch

    trial = trial or (lambda samples: _trial_run(words, samples))

    def fits(samples: int) -> bool:
        end = trial(samples)
        if not end.fits and not end.out_of_memory and samples == step:
            raise ConfigError(f"{AUTO}: a trial with {samples} fails: {end.reason}")
        return end.fits

    found = largest_batch(fits, step, most, share=1 / 16)
    if not found:
        raise ConfigError(f"{AUTO}: not even {step} samples fit; train.recompute=true or more stages take less memory")
    return found


def _trial_run(words: Sequence[str], samples: int) -> TrialEnd:
    """A run in a separate process, which frees all its memory at the end."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        chosen = [*words, *_QUIET, f"train.batch_size={samples}", f"hydra.run.dir={run}"]
        done = subprocess.run([sys.executable, "-m", "pipetrain", "run", *chosen], capture_output=True, text=True)
        logs = "".join(log.read_text(errors="replace") for log in run.glob("**/*.log"))
        return TrialEnd(done.returncode, logs + done.stdout + done.stderr)
