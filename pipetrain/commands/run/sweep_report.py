"""Output of a sweep around its runs: a name for each, and at the end a comparison."""

import os
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
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
    """Names the runs before the sweep, says which one begins, and compares them after the sweep."""

    def __init__(self) -> None:
        self._total: int | None = None

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        searches = objective.searches(config)
        # first, as Hydra turns an exception in what follows into a warning and continues
        sweep_ends.begin(Path(config.hydra.sweep.dir), objective.column_of(config) if searches else None)
        words, swept = list(config.hydra.overrides.task), _swept(config)
        with sweep_ends.refusing():
            if searches:
                objective.check_search(config)
            self._total = _trials(config.hydra.sweeper) if searches else number_of_runs(words, swept)
            if self._total == 0:
                raise ConfigError(f"--multirun {' '.join(words)}: no run; a glob or range in it has no values")
        same = constant(words, swept)
        with read_write(config), open_dict(config):
            config.hydra.overrides.hydra.append(
                f"hydra.job.config.override_dirname.exclude_keys=[{','.join(map(_quoted, same))}]"
            )

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


def _trials(sweeper: DictConfig) -> int | None:
    """Number of Optuna's runs; None if unknown, as for a grid, which may have fewer than requested."""
    return None if "grid" in str(sweeper.get("sampler")).lower() else sweeper.get("n_trials")


def show() -> None:
    """Shows the runs of this process's sweep side by side, as far as there are any."""
    sweep = sweep_ends.sweep()
    if sweep is None:
        return
    # not at the top: they need torch, which a wrong setting does not wait for
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


def _swept(config: DictConfig) -> Mapping[str, object]:
    """Settings that the sweeper's configuration varies; not every sweeper has them."""
    params = config.hydra.sweeper.get("params")
    return {str(name): value for name, value in params.items()} if isinstance(params, DictConfig) else {}


def _quoted(setting: str) -> str:
    return f"'{setting}'"


_LONGEST = 80
_UNSAFE = re.compile(r"[^\w.=+-]+")


def folder_name(number: int, differing: str) -> str:
    """The folder of a run of a sweep, such as `3_pipedream_lr=0.1_seed=0`; its number alone where that gets too long.

    Args:
        number: of the run, which no other has.
        differing: the settings that differ, such as `method=pipedream optimizer.lr=0.1 seed=0`.
    """
    # `method=` is what nearly every sweep begins with, and its value says enough
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
    """The settings, of those given on the command line, that are the same in all runs.

    Args:
        words: the overrides of the sweep.
        swept: what the sweeper itself varies, by name.
    """
    overrides = overrides_of(words)
    same = [each.key_or_group for each in overrides if not each.is_sweep_override()]
    given = {each.key_or_group for each in overrides}
    return [*same, *(name for name, value in swept.items() if name not in given and not _varies(name, value))]


def number_of_runs(words: Sequence[str], swept: Mapping[str, object]) -> int | None:
    """Number of runs of Hydra's own sweeper; None if a word needs another sweeper."""
    values = {name: f"{name}={value}" for name, value in swept.items()}
    parsed = overrides_of([*values.values(), *words])
    last: dict[str, Override] = {each.key_or_group: each for each in parsed}
    if any(each.is_sweep_override() and not each.is_discrete_sweep() for each in last.values()):
        return None
    return prod(len(list(each.sweep_string_iterator())) for each in last.values() if each.is_sweep_override())


def _varies(name: str, value: object) -> bool:
    return overrides_of([f"{name}={value}"])[0].is_sweep_override()
