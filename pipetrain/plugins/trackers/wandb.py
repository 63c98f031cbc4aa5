"""Weights & Biases: a run of a project; the sweep, if there is one, is its group."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import wandb
from typing_extensions import override

from pipetrain.engine.failure import relative_to_cwd
from pipetrain.runner.tracking.callbacks import Callback, RunInfo
from pipetrain.runner.tracking.records import STALENESS, Record, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.tracking.trackers import identity
from pipetrain.runner.tracking.trackers.points import points_of, results

_KINDS = ("interval", "epoch", "eval", STALENESS)
"""The kinds of records that have points."""


class WandB(Callback):
    """Logs numbers of records over their `step`, with the settings as config and the results as summary.

    A resumed run continues the run whose id is in its directory, after the last step that it has of each kind.
    """

    @override
    def on_start(self, run: RunInfo) -> None:
        self._directory = RunDirectory(run.directory)
        self._run = wandb.init(  # what is given here has precedence over the environment
            project=os.environ.get("WANDB_PROJECT", identity.PROJECT),
            name=os.environ.get("WANDB_NAME", relative_to_cwd(run.directory)),
            group=os.environ.get("WANDB_RUN_GROUP", None if run.sweep is None else relative_to_cwd(run.sweep)),
            id=identity.stored_ids(self._directory).get("wandb"),
            resume="allow",
            reinit="create_new",
            config=values_set(run.settings, run.choices),
            allow_val_change=True,
            tags=[f"{name}:{value}" for name, value in identity.tags_of(run.choices).items()],
        )
        identity.store_ids(self._directory, wandb=self._run.id)
        self._run.define_metric("*", step_metric="step")  # W&B's own steps count calls
        self._last = {kind: self._run.summary.get(_step_of(kind), -1) for kind in _KINDS}
        for kind in _KINDS:
            self._run.define_metric(_step_of(kind), hidden=True)  # no chart
        for record in read_records(self._directory):  # of earlier parts of the run
            self.on_record(record)

    @override
    def on_record(self, record: Record) -> None:
        kind, step = record["kind"], record["step"]
        if step > self._last.get(kind, -1) and (points := points_of(record)):
            with _connected():
                self._run.log({"step": step, _step_of(kind): step, **points})

    @override
    def on_end(self, summary: Mapping[str, Any]) -> None:
        with _connected():
            self._run.summary.update({"status": summary["status"], **results(summary)})
            artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
            for file in identity.artifacts(self._directory):
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
            self._run.finish(exit_code=int(summary["status"] != "completed"))


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Gives up W&B's own process once it is lost: Python's exit would show the traceback of another try."""
    try:
        yield
    except ConnectionError:
        with contextlib.suppress(Exception):
            wandb.teardown()
        raise


def _step_of(kind: str) -> str:
    """Tag of the step of a kind of records, whose summary value is the last step sent."""
    return f"step/{kind}"
