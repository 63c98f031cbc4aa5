"""MLflow: a run in the store that `MLFLOW_TRACKING_URI` names, and a parent run for each sweep."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from typing_extensions import override

from pipetrain.engine.failure import described, relative_to_cwd
from pipetrain.runner.tracking.callbacks import Callback, RunInfo
from pipetrain.runner.tracking.records import Record, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.tracking.trackers import identity
from pipetrain.runner.tracking.trackers.points import points_of, results

_STATUS = {"completed": "FINISHED", "interrupted": "KILLED"}
_SECONDS = 5.0
"""Seconds between requests with metrics."""
_PATIENCE_SECONDS = 60.0
"""Seconds that a busy store is asked again at the end of the run."""
_BUSY = "TEMPORARILY_UNAVAILABLE"
log = logging.getLogger(__name__)


class MLflow(Callback):
    """Sends settings as parameters, numbers of records and results as metrics, and files as artifacts.

    A resumed run continues the run whose id is in its directory, after the last step that it has of each kind. Records
    are kept while the store is busy, as a locked database is, and sent with later ones.
    """

    @override
    def on_start(self, run: RunInfo) -> None:
        self._client = MlflowClient()
        self._run = RunDirectory(run.directory)
        self._records: list[tuple[int, Record]] = []
        self._sent_at = time.monotonic()
        self._id = self._continued(identity.stored_ids(self._run).get("mlflow")) or self._created(run)
        self._last: dict[str, int] = {}
        tags = {**identity.tags_of(run.choices), "directory": str(run.directory)}
        present = self._client.get_run(self._id).data.params  # they cannot be changed
        values = values_set(run.settings, run.choices).items()
        params = [Param(name, str(value)) for name, value in values if name not in present]
        self._client.log_batch(self._id, params=params, tags=[RunTag(name, value) for name, value in tags.items()])
        for record in read_records(self._run):  # of earlier parts of the run, perhaps not sent before they ended
            self.on_record(record)

    def _continued(self, known: str | None) -> str | None:
        """Id of an earlier part of the run, running again; None if this store has none."""
        if known is None:
            return None
        try:
            self._client.update_run(known, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return known

    def _created(self, run: RunInfo) -> str:
        """Id of a new run, within the sweep's if there is one."""
        experiment = self._experiment()
        parent = {} if run.sweep is None else {"mlflow.parentRunId": self._parent(run.sweep, experiment)}
        created = self._client.create_run(experiment, tags=parent, run_name=relative_to_cwd(run.directory))
        found: str = created.info.run_id
        identity.store_ids(self._run, mlflow=found)
        return found

    def _experiment(self) -> str:
        if chosen := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return chosen
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", identity.PROJECT)
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another run has just created it
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def _parent(self, sweep: Path, experiment: str) -> str:
        """Id of the sweep's run, which the first of its runs creates; they may be running side by side."""
        with (sweep / identity.MLFLOW_PARENT).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if not (found := file.read()):
                name, tags = relative_to_cwd(sweep), {"directory": str(sweep)}
                found = str(self._client.create_run(experiment, tags=tags, run_name=name).info.run_id)
                file.write(found)
            return found

    def _last_step(self, kind: str, metric: str) -> int:
        """Last step of a kind of records that earlier parts of the run sent, by one of its metrics; -1 if none."""
        if kind not in self._last:
            history = self._client.get_metric_history(self._id, metric)
            self._last[kind] = max((each.step for each in history), default=-1)
        return self._last[kind]

    @override
    def on_record(self, record: Record) -> None:
        self._records.append((int(time.time() * 1000), record))
        if time.monotonic() - self._sent_at <= _SECONDS:
            return
        try:
            self._send()
        except MlflowException as error:
            if error.error_code != _BUSY:
                raise
            log.warning("MLflow is busy: %s", described(error))
        self._sent_at = time.monotonic()

    def _send(self) -> None:
        metrics = []
        for at, record in self._records:
            points = points_of(record)
            if points and record["step"] > self._last_step(record["kind"], next(iter(points))):
                metrics += [Metric(tag, value, at, record["step"]) for tag, value in points.items()]
        self._client.log_batch(self._id, metrics=metrics)
        self._records = []

    @override
    def on_end(self, summary: Mapping[str, Any]) -> None:
        try:
            _patiently(self._send)
            now, step = int(time.time() * 1000), summary["steps"]
            last = [Metric(tag, value, now, step) for tag, value in results(summary).items()]
            _patiently(lambda: self._client.log_batch(self._id, metrics=last))
            for file in identity.artifacts(self._run):
                self._client.log_artifact(self._id, str(file))
        except Exception:
            self.end_run(self._id, "failed")  # it lacks what could not be sent
            raise
        self.end_run(self._id, summary["status"])

    @classmethod
    @override
    def end_run(cls, number: str, status: str) -> None:
        """Ends the MLflow run of a run or sweep with a status of pipetrain's."""
        client = MlflowClient()
        _patiently(lambda: client.set_tag(number, "status", status))
        _patiently(lambda: client.set_terminated(number, _STATUS.get(status, "FAILED")))


def _patiently(request: Callable[[], object]) -> None:
    """Repeats a request while the store is busy."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            request()
        except MlflowException as error:
            if error.error_code != _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_SECONDS)
        else:
            return
