"""Runs in MLflow, read back through its client from a database on the disk."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import cli

from pipetrain.runner.tracking.callbacks import RunInfo
from pipetrain.runner.tracking.records import MetricsFile
from pipetrain.runner.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")

OWN = "support.own_callbacks"
WORDS = (
    "model=lenet5", "dataset.limit=160", "train.batch_size=32", "threads=1", "partition.stages=2", "log.to=[mlflow]",
)  # fmt: skip
SIMULATED = (*WORDS, "executor=simulated")


@pytest.fixture(scope="module")
def client():
    """The class of a client; imported here, as it takes a while and every process collects this module."""
    from mlflow.tracking import MlflowClient

    return MlflowClient


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory, client):
    """Its tables take seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "store.db"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path, monkeypatch, client, empty_database):
    """A client of a new database, which runs in `tmp_path` use, too."""
    monkeypatch.chdir(tmp_path)  # where it keeps artifacts
    shutil.copy(empty_database, tmp_path)
    uri = f"sqlite:///{tmp_path}/store.db"
    for name, value in {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return client(uri)


def runs(store, experiment="pipetrain"):
    """Name -> run."""
    found = store.search_runs([store.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in found}


def steps(store, run, metric):
    return [(each.step, each.value) for each in store.get_metric_history(run.info.run_id, metric)]


def artifacts(store, run):
    return {each.path for each in store.list_artifacts(run.info.run_id)}


@pytest.mark.slow
def test_run_has_parameters_metrics_tags_and_artifacts(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    cli.run_here(tmp_path / "run", *WORDS, "train.epochs=2", "method=pipeoptim")
    (name, run), *others = runs(store, "mine").items()
    records, summary = cli.records(tmp_path / "run"), cli.summary(tmp_path / "run")
    assert (name, others, run.info.status) == ("run", [], "FINISHED")
    assert run.data.params.items() >= {"method": "pipeoptim", "partition.stages": "2", "train.epochs": "2"}.items()
    assert run.data.tags.items() >= {
        "method": "pipeoptim", "model": "lenet5", "status": "completed", "directory": str(tmp_path / "run")
    }.items()  # fmt: skip
    for kind, field, metric in (
        ("interval", "loss", "train/loss"), ("interval", "samples_per_second", "throughput/samples_per_second"),
        ("epoch", "loss", "train/epoch_loss"), ("epoch", "stage1_idle_share", "idle_share/stage1"),
        ("eval", "eval_top1", "eval/top1"),
    ):  # fmt: skip
        assert steps(store, run, metric) == [(each["step"], each[field]) for each in records if each["kind"] == kind]
    assert steps(store, run, "final/top1") == [(10, summary["final"]["top1"])]
    assert steps(store, run, "run/samples_per_second") == [(10, summary["samples_per_second"])]
    assert artifacts(store, run) == {"summary.json", "config.yaml"}
    path = store.download_artifacts(run.info.run_id, "summary.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == summary


@pytest.mark.slow
def test_killed_run_is_continued_with_each_step_once(store, tmp_path):
    kill = f"callbacks=[{{_target_: {OWN}.Killing, step: 7, file: {tmp_path}/killed}}]"
    longer = (*WORDS, "train.epochs=3", "checkpoint.every_steps=3", "log.staleness_every_steps=2")
    cli.fails(tmp_path / "run", *longer, kill, message="stage 1 failed: killed by SIGKILL")
    (killed,) = runs(store).values()
    assert (killed.info.status, killed.data.tags["status"]) == ("FAILED", "failed")
    # in another directory, from the checkpoint of step 6
    cli.run_here(tmp_path / "again", *longer, f"resume={tmp_path}/run")
    (run,) = runs(store).values()
    assert (run.info.run_id, run.info.status) == (killed.info.run_id, "FINISHED")
    assert run.data.tags["directory"] == str(tmp_path / "again")
    assert [step for step, _ in steps(store, run, "train/loss")] == list(range(1, 16))
    assert [step for step, _ in steps(store, run, "eval/loss")] == [5, 10, 15]
    assert [step for step, _ in steps(store, run, "weight_drift/stage0")] == [2, 4, 6, 8, 10, 12, 14]
    # other settings are another run, with the steps before the checkpoint
    cli.run_here(tmp_path / "other", *longer, f"resume={tmp_path}/run", "optimizer.lr=0.01")
    both = runs(store)
    assert set(both) == {"run", "other"}
    cli.run_here(tmp_path / "again", *longer, f"resume={tmp_path}/again/checkpoints/step-00000010", "optimizer.lr=0.01")
    assert len(store.search_runs([store.get_experiment_by_name("pipetrain").experiment_id])) == 3
    assert [step for step, _ in steps(store, both["other"], "train/loss")] == list(range(1, 16))


@pytest.mark.slow
def test_resumed_run_sends_no_record_again(store, tmp_path, monkeypatch):
    from pipetrain.plugins.trackers import mlflow

    monkeypatch.setattr(mlflow, "_SECONDS", -1.0)  # each record by itself
    file = MetricsFile(RunDirectory(tmp_path), 0)
    file.write({"kind": "start", "step": 0})
    made = {
        "interval": {"loss": 0.5, "lr": 0.1}, "eval": {"eval_loss": 0.5, "eval_s": 1.0},
        "staleness": {"stage0_weight_drift": 0.25, "stage0_weight_norm": 2.0},
    }  # fmt: skip
    for step in (2, 4):
        for kind, numbers in made.items():
            file.write({"kind": kind, "step": step, **numbers})
    for last in (6, 8):
        tracker = mlflow.MLflow()
        tracker.on_start(RunInfo(tmp_path, {}, {}, 8))
        for kind, numbers in made.items():
            record = {"kind": kind, "step": last, **numbers}
            file.write(record)
            tracker.on_record(record)
    (run,) = runs(store).values()
    for metric in ("train/loss", "eval/loss", "weight_drift/stage0"):
        assert [step for step, _ in steps(store, run, metric)] == [2, 4, 6, 8]


class BusyClient:
    """A client whose store is locked while `busy`, and which notes what it is sent."""

    def __init__(self):
        self.busy, self.steps, self.ended = False, [], []

    def _ask(self):
        from mlflow.exceptions import TEMPORARILY_UNAVAILABLE, MlflowException

        if self.busy:
            raise MlflowException("database is locked", error_code=TEMPORARILY_UNAVAILABLE)

    def get_metric_history(self, _run, _metric):
        self._ask()
        return []

    def log_batch(self, _run, metrics):
        self._ask()
        self.steps += [(each.key, each.step) for each in metrics]

    def set_tag(self, _run, _name, _value):
        self._ask()

    def set_terminated(self, _run, status):
        self.ended.append(status)


@pytest.fixture
def busy(tmp_path, monkeypatch):
    """A tracker that sends each record by itself, and its client; a pause makes its store available."""
    from pipetrain.plugins.trackers import mlflow

    made = BusyClient()
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: made)
    monkeypatch.setattr(mlflow, "_SECONDS", -1.0)
    monkeypatch.setattr(mlflow.time, "sleep", lambda _seconds: setattr(made, "busy", False))
    tracker = mlflow.MLflow()
    tracker._client, tracker._run, tracker._id = made, RunDirectory(tmp_path), "run"
    tracker._records, tracker._last, tracker._sent_at = [], {}, 0.0
    return tracker, made


def test_records_wait_for_a_store_that_is_busy(busy):
    tracker, client = busy
    for step in range(1, 7):
        client.busy = step in (2, 3, 6)
        tracker.on_record({"kind": "interval", "step": step, "loss": 0.5, "lr": 0.1})
        assert len(client.steps) == 2 * (1 if step in (2, 3) else min(step, 5))
    tracker.on_end({"status": "completed", "steps": 6, "final": {}, "best": {}})
    assert [step for name, step in client.steps if name == "train/loss"] == [1, 2, 3, 4, 5, 6]
    assert client.ended == ["FINISHED"]


def test_run_whose_records_are_never_taken_is_failed_there(busy, monkeypatch):
    from pipetrain.plugins.trackers import mlflow

    tracker, client = busy
    client.busy = True
    monkeypatch.setattr(mlflow, "_PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(client, "set_tag", lambda *_: None)
    with pytest.raises(mlflow.MlflowException, match="locked"):
        tracker.on_end({"status": "completed", "steps": 6, "final": {}, "best": {}})
    assert client.ended == ["FAILED"]


@pytest.mark.slow
def test_runs_of_a_sweep_have_a_parent(store, tmp_path):
    words = ("run", "--multirun", "method=gpipe,pipedream", *SIMULATED, "train.epochs=1", "hydra.sweep.dir=sweep")
    done = cli.pipetrain_here(*words, "optimizer.lr=0.05,1e9", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    found = runs(store)
    parent = found.pop("sweep")
    assert len(found) == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    assert sorted(run.info.status for run in found.values()) == ["FAILED", "FAILED", "FINISHED", "FINISHED"]
    assert (parent.info.status, parent.data.tags["status"]) == ("FAILED", "failed")
    assert "sweep/0_gpipe_lr=0.05" in found


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_store_that_cannot_be_reached_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = cli.run_here(tmp_path / "run", *SIMULATED, "train.max_steps=2")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("pipetrain: warning")]
    assert line.startswith("pipetrain: warning: log.to=[mlflow]: on_start raised MlflowException: ")
    assert cli.summary(tmp_path / "run")["status"] == "completed"
