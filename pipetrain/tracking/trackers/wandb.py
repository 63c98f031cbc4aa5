"""Weights & Biases: a run of a project; the sweep, if there is one, is its group."""

import os
from collections.abc import Mapping
from typing import Any

import wandb
from typing_extensions import override

from pipetrain.tracking.callbacks import Callback, RunInfo
from pipetrain.tracking.records import Record, read_records
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import values_set
from pipetrain.tracking.trackers import identity
from pipetrain.tracking.trackers.points import points_of, results


class WandB(Callback):
    """Logs numbers of records over their `step`, with the settings as config and the results as summary.

    A resumed run continues the run whose id is in its directory, after the rows that it has.
    """

    @override
    def on_start(self, run: RunInfo) -> None:
        self._directory = RunDirectory(run.directory)
        self._run = wandb.init(  # what is given here has precedence over the environment
            project=os.environ.get("WANDB_PROJECT", identity.PROJECT),
            name=os.environ.get("WANDB_NAME", identity.name_of(run.directory)),
            group=os.environ.get("WANDB_RUN_GROUP", None if run.sweep is None else identity.name_of(run.sweep)),
            id=identity.stored_ids(self._directory).get("wandb"),
            resume="allow",
            reinit="create_new",
            config=values_set(run.settings, run.choices),
            allow_val_change=True,
            tags=[f"{name}:{value}" for name, value in identity.tags_of(run.choices).items()],
        )
        identity.store_ids(self._directory, wandb=self._run.id)
        self._run.define_metric("*", step_metric="step")  # W&B's own steps count calls
        self._rows_left_out = self._run.starting_step
        for record in read_records(self._directory):  # of earlier parts of the run
            self.on_record(record)

    @override
    def on_record(self, record: Record) -> None:
        if points := points_of(record):
            if self._rows_left_out:
                self._rows_left_out -= 1
            else:
                self._run.log({"step": record["step"], **points})

    @override
    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({"status": summary["status"], **results(summary)})
        artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
        for file in identity.artifacts(self._directory):
            artifact.add_file(str(file))
        self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(summary["status"] != "completed"))
