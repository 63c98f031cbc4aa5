"""The directory of a run: the names of its files."""

import contextlib
import os
import re
import stat
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from typing_extensions import override

from pipetrain.data.files.regular_file import text_of
from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.runner.config import plain_yaml
from pipetrain.runner.config.composition import choices_made
from pipetrain.runner.tracking import files

_HYDRA, _RECORD = ".hydra", "hydra.yaml"
_NOTE = re.compile(r"failure-process\d+\.(json|txt)")
_BEFORE_RESTART = "before-restart-"
_COPIES = frozenset({"mlruns", "wandb"})
"""Folders in which MLflow and Weights & Biases keep copies of files of runs."""


class RunDirectory:
    """A directory that one run writes to, now or earlier.

    Attributes:
        config: file of the resolved settings.
        hydra: folder of Hydra's own record of the command line.
        tracker_ids: the ids of the run in MLflow and Weights & Biases.
        trace_parts: folder of the part of the trace of each process.
        log: the log of the command; the name is Hydra's `hydra.job.name`.
        logs: folder of the output of the processes, and of the reasons of their failures.
        timeline: folder of what `pipetrain timeline` draws of the run.
        page: what `pipetrain report runs` writes of the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.hydra = path / _HYDRA
        self.plan = path / "plan.json"
        self.metrics = path / "metrics.jsonl"
        self.tracker_ids = path / "trackers.json"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"
        self.trace = path / "trace.json"
        self.trace_parts = path / "trace-parts"
        self.checkpoints = path / "checkpoints"
        self.log = path / "pipetrain.log"
        self.logs = path / "logs"
        self.timeline = path / "timeline"
        self.page = path / "report.html"
        self._signs_of_a_run = (self.config, self.plan, self.metrics, self.summary, self.checkpoints)
        others = (self.hydra, self.tensorboard, self.trace_parts, self.logs, self.timeline)
        self._folders = {self.checkpoints, *others}
        self._of_one_run = (
            *self._signs_of_a_run, self.tracker_ids, self.trace, self.log, self.page, *others,
        )  # fmt: skip

    @override
    def __str__(self) -> str:
        return str(self.path)

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after `step` steps; names sort by step."""
        return self.checkpoints / f"step-{step:08d}"

    def failure_note(self, process: int) -> Path:
        """A process's reason of failure, as reported by itself or by another process."""
        return self.logs / f"failure-process{process}.json"

    def failure_traceback(self, process: int) -> Path:
        """The traceback of its failure."""
        return self.logs / f"failure-process{process}.txt"

    def failed_processes(self) -> list[int]:
        """The processes of which there are notes."""
        return sorted(
            int(note.stem.removeprefix("failure-process")) for note in self._failure_files() if note.suffix == ".json"
        )

    def forget_failures(self) -> None:
        """Removes the notes of an earlier attempt."""
        for note in self._failure_files():
            note.unlink()

    def _failure_files(self) -> list[Path]:
        """Notes and tracebacks, without other files among them."""
        found = self.logs.glob("failure-process*")
        return [path for path in found if _NOTE.fullmatch(path.name) and path.is_file() and not path.is_symlink()]

    @property
    def restarts(self) -> int:
        """Number of restarts after a worker failed."""
        return len(list(self.logs.glob(f"{_BEFORE_RESTART}*")))

    def archive_logs(self) -> Path:
        """Moves the files of a failed attempt in `logs` to a new folder there, and returns it."""
        aside = self.logs / f"{_BEFORE_RESTART}{self.restarts + 1}"
        left = [path for path in self.logs.iterdir() if not path.name.startswith(_BEFORE_RESTART)]
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)
        return aside

    def stored_values(self) -> dict[str, Any]:
        """config.yaml as it was written; raises a ConfigError if there is none, or it is damaged."""
        if not self.config.is_file():
            raise ConfigError(f"{self}: not a run directory (it has no {self.config.name})")
        return _loaded(self.config, dict)

    def stored_config(self) -> DictConfig:
        """The same as a configuration; raises as `stored_values`."""
        values = self.stored_values()
        try:
            return OmegaConf.create(values)
        except Exception as error:  # for a key that is a list, for instance
            raise ConfigError(f"{self.config}: damaged: {one_line(error)}") from error

    def choices(self) -> dict[str, str]:
        """Choice of each group that the run was started with, a ConfigError if damaged; empty without a record."""
        record = self.hydra / _RECORD
        if not record.is_file():
            return {}
        try:
            return choices_made(_loaded(record, dict)["hydra"]["runtime"]["choices"])
        except (KeyError, TypeError, AttributeError):
            raise ConfigError(f"{record}: damaged: hydra.runtime.choices is missing") from None

    def overrides(self) -> list[str]:
        """The overrides that the run was started with; raises a ConfigError if their record is damaged."""
        record = self.hydra / "overrides.yaml"
        if not record.is_file():
            return []
        return [str(override) for override in _loaded(record, list)]

    def remove_if_empty(self) -> None:
        """Removes what Hydra made for a rejected run: the folder, and outputs/DATE/ above it where it is empty."""
        folders = [self.path]
        if re.fullmatch(r"\d{4}-\d\d-\d\d", self.path.parent.name):
            folders += [self.path.parent, self.path.parent.parent]
        with contextlib.suppress(OSError):  # it is in use, and stays
            for folder in folders:
                folder.rmdir()

    def archive_previous_run(self) -> Path | None:
        """Moves an earlier run's files to a new folder, and returns it; None if there is no earlier run.

        An empty folder is not a sign of a run; if a disk is mounted there, it stays.
        """
        if all(_is_empty(path) for path in self._signs_of_a_run):
            return None
        moved = (path for path in self._of_one_run if not (_is_empty(path) and os.path.ismount(path)))
        return files.archive_files(self.path, [path.name for path in moved])

    def check_replaceable(self) -> None:
        """Raises a ConfigError if a new run would archive a config.yaml here that no run wrote."""
        if not self.config.exists() or self.plan.exists() or self.summary.exists():
            return
        with contextlib.suppress(ConfigError):
            if {"model", "train"} <= self.stored_config().keys():
                return
        raise ConfigError(f"hydra.run.dir={self}: its {self.config.name} is not a run's; choose another directory")

    def archive_checkpoints_after(self, checkpoint: Path | None) -> Path | None:
        """Moves checkpoints of later steps than `checkpoint`, or all, to a new folder; None if there are none."""
        found = self.checkpoints.glob("step-*")
        later = sorted(path for path in found if checkpoint is None or path.name > checkpoint.name)
        return files.archive_files(self.path, [str(path.relative_to(self.path)) for path in later])

    def check_own(self) -> None:
        """Raises a ConfigError if a run could write elsewhere: a file or folder is a link, or of another kind."""
        for path in (*self.path.glob("*.partial"), *self.path.glob("*.log")):  # hydra.job.name names the log
            check_own(path)
        partial = (path.with_name(f"{path.name}.partial") for path in self._of_one_run)
        for path in (*self._of_one_run, *partial):
            check_own(path)
            wanted = path in self._folders
            if path.exists() and path.is_dir() is not wanted:
                there, needed = ("a file", "folder") if wanted else ("a folder", "file")
                raise ConfigError(f"{path}: is {there}, and a run writes a {needed} of that name; remove it")


def _is_empty(path: Path) -> bool:
    """True if there is nothing, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def check_own(path: Path) -> None:
    """Raises a ConfigError if a path, which may not exist, or something below it is a link, or of another kind."""
    walk = () if path.is_symlink() else os.walk(path)
    below = (Path(parent, name) for parent, *names in walk for name in chain(*names))
    for each in (path, *below):
        _check_kind(each)


def check_member(run: Path, sweep: Path) -> None:
    """Raises a ConfigError if the way from a sweep's folder, which may be untrusted, to a run's leads over a link."""
    for each in (run, *run.parents):
        if sweep in each.parents:
            _check_kind(each)


def _check_kind(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
        raise ConfigError(f"{path}: is {what}; remove it, or choose another directory")


Kind = TypeVar("Kind", dict[str, Any], list[Any])


def _loaded(path: Path, kind: type[Kind]) -> Kind:
    """The YAML of a file; raises a ConfigError if it cannot be read, or is not of this kind."""
    try:
        content = plain_yaml.load(text_of(path))
    except Exception as error:  # of the parser, of the decoder, of the file system
        raise ConfigError(f"{path}: damaged: {one_line(error)}") from error
    if not isinstance(content, kind):
        raise ConfigError(f"{path}: damaged: it is not a {'mapping' if kind is dict else 'list'}")
    return content


def runs_in(folder: Path) -> list[RunDirectory]:
    """The runs in a folder, at any depth, ended or not.

    Those set aside for a later one are left out, unless the folder itself is one, as are the copies that trackers keep
    of a run's files.
    """
    found = {path.parent for name in ("summary.json", "config.yaml") for path in folder.rglob(name)}
    return [run for run in map(RunDirectory, sorted(found)) if _is_run(run, folder)]


def _is_run(run: RunDirectory, folder: Path) -> bool:
    # Hydra's record, under any `hydra.output_subdir`, is not a run
    is_named_as_record = run.path.name == _HYDRA or (run.path / _RECORD).exists()
    is_record = is_named_as_record and not any(path.exists() for path in (run.plan, run.metrics, run.summary))
    is_copy = not _COPIES.isdisjoint(run.path.relative_to(folder).parts[:-1])
    is_aside = run.path != folder and files.is_archive(run.path)
    return not (is_record or is_copy or is_aside)
