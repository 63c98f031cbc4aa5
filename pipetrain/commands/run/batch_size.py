"""`train.batch_size=auto`: the largest minibatch that fits the CUDA devices of a run, found by trial runs."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pipetrain import outer_launcher
from pipetrain.errors import ConfigError, ExitCode

AUTO = "train.batch_size=auto"
_QUIET = (
    "eval.every_epochs=0", "checkpoint.every_epochs=0", "log.progress_seconds=0", "resume=null", "trace=false",
    "log.to=[]", "callbacks=[]", "train.target=null", "train.patience=null", "train.min_improvement=0",
    "checkpoint.keep_best=null",
)  # fmt: skip


def with_batch_size(words: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """The words of a run, with a number instead of `auto` if that is among them; `config_dir` is the user's folder.

    Raises:
        ConfigError: the run does not use CUDA devices, has phases, is a sweep, or no minibatch fits.
    """
    if AUTO not in words:
        return list(words)
    if outer_launcher.is_present():
        raise ConfigError(f"{AUTO}: under an outer launcher each process would try for itself; give a number")
    # from here on torch is needed, which takes seconds to import
    from pipetrain.config.composition import combinations, composed, with_choices_of
    from pipetrain.planner.max_batch import MOST_SAMPLES
    from pipetrain.training.builders.machine import device_of

    others = [word for word in words if word != AUTO]
    tried = with_choices_of(config_dir, others)
    if len(list(islice(combinations(others), 2))) > 1:
        raise ConfigError(f"{AUTO}: finds the batch of one run, and this is a sweep; give each a number")
    settings = composed(tried)
    if len(settings.phases) > 1:
        raise ConfigError(f"{AUTO}: tries a few steps, and this run has phases; give a number")
    if device_of(settings.device) != "cuda":
        raise ConfigError(
            f"{AUTO}: tries what fits the memory of CUDA devices, and this run is on the CPU; give a number, such as "
            "`pipetrain predict --fit` finds for topology.memory_gigabytes"
        )
    stages = settings.partition.options.get("stages")
    steps = 2 * (stages if isinstance(stages, int) else 8) + 2
    shorter = [f"train.max_steps={steps}"]
    if settings.lr_schedule.options.get("warmup"):  # which may not be longer than the run
        shorter += ["++lr_schedule.unit=step", f"lr_schedule.warmup={steps}"]
    found = _largest_fitting([*tried, *shorter], settings.train.microbatches, MOST_SAMPLES)
    print(f"{AUTO}: train.batch_size={found} is the largest that fits")
    return [*others, f"train.batch_size={found}"]


def _largest_fitting(words: Sequence[str], step: int, most: int) -> int:
    """The largest multiple of `step` with which a run of these words completes, to a sixteenth.

    Raises:
        ConfigError: a run of `step` samples fails, too, and not because batch norm needs two in a microbatch.
    """
    from pipetrain.planner.max_batch import largest_batch

    def fits(samples: int) -> bool:
        code, output = trial(words, samples)
        if samples == step and _fails_otherwise(code, output):
            reason = (output.strip() or f"exit code {code}").splitlines()[-1]
            code, output = trial(words, 2 * step)
            if _fails_otherwise(code, output):
                raise ConfigError(f"{AUTO}: a trial with {samples} fails: {reason}")
        fitting = code == ExitCode.COMPLETED
        print(f"{AUTO}: {samples} {'fits' if fitting else 'is too large'}", flush=True)
        return fitting

    found = largest_batch(fits, step, most, share=1 / 16)
    if not found:
        raise ConfigError(f"{AUTO}: not even {step} samples fit; train.recompute=true or more stages take less memory")
    return found


def _fails_otherwise(code: int, output: str) -> bool:
    """True if a run has failed for another reason than its memory."""
    return code != ExitCode.COMPLETED and "out of memory" not in output.lower()


def trial(words: Sequence[str], samples: int) -> tuple[int, str]:
    """Exit code and output of a run in a separate process, which frees all its memory at the end."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        chosen = [*words, *_QUIET, f"train.batch_size={samples}", f"hydra.run.dir={run}"]
        done = subprocess.run([sys.executable, "-m", "pipetrain", "run", *chosen], capture_output=True, text=True)
        logs = "".join(log.read_text(errors="replace") for log in run.glob("**/*.log"))
        return done.returncode, logs + done.stdout + done.stderr
