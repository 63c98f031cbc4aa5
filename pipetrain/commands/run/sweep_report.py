"""What a sweep shows around its runs: what each is, and at the end all of them side by side."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override

from pipetrain.commands.run.run_names import constant, number_of_runs
from pipetrain.config.settings import choices_made
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.tracking.hyperparameters import values_set
from pipetrain.tracking.run_directory import RunDirectory


class SweepReport(Callback):
    """Names the runs before the sweep, says which one begins, and compares them after the sweep."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._refused: list[ComparedRun] = []

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        words, swept = list(config.hydra.overrides.task), _swept(config)
        self._total = number_of_runs(words, swept)
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
    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        run = RunDirectory(Path(config.hydra.runtime.output_dir))
        if not run.config.exists():
            reason = "before its start, as was said above"
            self._refused.append(ComparedRun(run.path, "refused", reason, _settings(config), _asked(config)))

    @override
    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from pipetrain.report.sweep import report, table
        from pipetrain.report.sweep.groups import collect

        if os.environ.get("RANK", "0") != "0":
            return
        folder = Path(config.hydra.sweep.dir)
        groups, metric = report.ranked(collect([folder], {}, self._refused), None)
        print(f"\n{table.text(groups, metric)}\n")
        print(f"next: pipetrain report runs {folder} -o comparison, tensorboard --logdir {folder}", flush=True)


def _swept(config: DictConfig) -> Mapping[str, object]:
    """What the configuration of the sweeper varies; not every sweeper has that."""
    params = config.hydra.sweeper.get("params")
    return {str(name): value for name, value in params.items()} if isinstance(params, DictConfig) else {}


def _quoted(setting: str) -> str:
    return f"'{setting}'"


def _asked(config: DictConfig) -> list[str]:
    return [word.lstrip("+").partition("=")[0] for word in config.hydra.overrides.task]


def _settings(config: DictConfig) -> dict[str, Any]:
    """What a run was to be, as far as it can be told of one that was refused."""
    whole: Any = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    try:
        plain = OmegaConf.to_container(whole, resolve=True)
    except OmegaConfBaseException:
        plain = {}
    return values_set(plain, choices_made(config.hydra.runtime.choices))  # type: ignore[arg-type]
