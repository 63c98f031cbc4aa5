"""What a sweep shows around its runs: what each is, and at the end all of them side by side."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig, open_dict, read_write
from typing_extensions import override

from pipetrain.commands.run import objective, sweep_ends
from pipetrain.commands.run.run_names import constant, number_of_runs
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
        # first, as Hydra takes an exception of what follows for a warning, and goes on
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
    """How many runs Optuna makes; None where nobody can tell, as of a grid, which may have fewer than it is to make."""
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
    """What the configuration of the sweeper varies; not every sweeper has that."""
    params = config.hydra.sweeper.get("params")
    return {str(name): value for name, value in params.items()} if isinstance(params, DictConfig) else {}


def _quoted(setting: str) -> str:
    return f"'{setting}'"
