"""Output of a sweep around its runs: a name for each, and at the end a comparison."""

import os
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig, open_dict, read_write
from typing_extensions import override

from pipetrain.commands.run import objective, sweep_ends
from pipetrain.config.composition import overrides_of
from pipetrain.config.schema import TARGET
from pipetrain.errors import ConfigError
from pipetrain.tracking.run_directory import RunDirectory, runs_in

_REFUSED = "before its start, as was said above"


class SweepReport(Callback):
    """Begins the sweep, names its runs, prints which one begins, and compares them after the sweep."""

    def __init__(self) -> None:
        self._total: int | None = None

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        searches = objective.searches(config)
        words, params = list(config.hydra.overrides.task), config.hydra.sweeper.get("params")
        # not every sweeper has settings of its own to vary
        swept = {str(name): value for name, value in params.items()} if isinstance(params, DictConfig) else {}
        with sweep_ends.refusing():
            sweep_ends.begin(Path(config.hydra.sweep.dir), objective.column_of(config) if searches else None)
            if not searches:
                self._total = number_of_runs(words, swept)
            else:
                objective.check_search(config)
                # a grid may have fewer runs than requested
                is_grid = "grid" in str(config.hydra.sweeper.get("sampler")).lower()
                self._total = None if is_grid else config.hydra.sweeper.get("n_trials")
            if self._total == 0:
                raise ConfigError(f"--multirun {' '.join(words)}: no run; a glob or range in it has no values")
        same = ",".join(f"'{name}'" for name in constant(words, swept))
        with read_write(config), open_dict(config):
            config.hydra.overrides.hydra.append(f"hydra.job.config.override_dirname.exclude_keys=[{same}]")

    @override
    def on_job_start(self, config: DictConfig, *, task_function: TaskFunction, **kwargs: Any) -> None:
        job = config.hydra.job
        if "num" not in job or os.environ.get("RANK", "0") != "0":
            return
        total = f" of {self._total}" if self._total else ""
        print(f"\nrun {job.num + 1}{total}: {job.override_dirname}", flush=True)

    @override
    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        show()


def show() -> None:
    """Shows the runs of this process's sweep side by side, if there are any."""
    sweep = sweep_ends.sweep()
    if sweep is None:
        return
    # from here on torch is needed, which takes seconds to import
    from pipetrain.report.sweep import comparison, sweep_tables
    from pipetrain.report.sweep.compared_run import ComparedRun
    from pipetrain.report.sweep.groups import collect

    folder = sweep.folder
    refused = [
        ComparedRun(Path(end.path), "refused", _REFUSED, end.settings, end.asked)
        for end in sweep_ends.ends(folder)
        if not RunDirectory(Path(end.path)).config.exists()
    ]
    if os.environ.get("RANK", "0") != "0" or not (refused or runs_in(folder)):
        return
    found = collect([folder], {}, refused)
    known = any(sweep.objective in run.values for group in found.groups for run in group.runs)
    groups, metric = comparison.ranked(found.groups, sweep.objective if known else None)
    print(f"\n{sweep_tables.text(groups, metric, found.skipped)}\n")
    if runs_in(folder):
        print(f"next: pipetrain report runs {folder} -o comparison, tensorboard --logdir {folder}", flush=True)


_LONGEST = 80
_UNSAFE = re.compile(r"[^\w.=+-]+")


def folder_name(number: int, differing: str) -> str:
    """The folder of a run of a sweep, such as `3_pipedream_lr=0.1_seed=0`; its number alone if that gets too long.

    Args:
        number: of the run.
        differing: the settings that differ, such as `method=pipedream optimizer.lr=0.1 seed=0`.
    """
    # nearly every sweep varies `method=`, whose value says enough
    words = sorted(differing.split(" "), key=lambda word: not word.startswith("method="))
    short = [word.removeprefix("method=").lstrip("+") for word in words if word]
    name = "_".join([str(number), *(_UNSAFE.sub("-", _without_section(word)) for word in short)])
    return name if len(name) <= _LONGEST else str(number)


def _without_section(word: str) -> str:
    setting, equals, value = word.partition("=")
    last = setting.rpartition(".")[2]
    if last == TARGET:
        return value.rpartition(".")[2]
    return f"{last}={value}" if equals else word


def constant(words: Sequence[str], swept: Mapping[str, object]) -> list[str]:
    """The given settings that are the same in all runs.

    Args:
        words: the overrides of the sweep.
        swept: settings that the sweeper itself varies, by name.
    """
    given = overrides_of(words)
    names = {each.key_or_group for each in given}
    given += overrides_of([f"{name}={value}" for name, value in swept.items() if name not in names])
    return [each.key_or_group for each in given if not each.is_sweep_override()]


def number_of_runs(words: Sequence[str], swept: Mapping[str, object]) -> int | None:
    """Number of runs of Hydra's own sweeper; None if a word needs another sweeper."""
    parsed = overrides_of([*(f"{name}={value}" for name, value in swept.items()), *words])
    last = {each.key_or_group: each for each in parsed}
    if any(each.is_sweep_override() and not each.is_discrete_sweep() for each in last.values()):
        return None
    return prod(len(list(each.sweep_string_iterator())) for each in last.values() if each.is_sweep_override())
