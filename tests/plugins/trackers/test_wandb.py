"""Runs in Weights & Biases, offline; the files that it leaves are those that `wandb sync` sends."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from support import cli

from pipetrain.runner.tracking.callbacks import RunInfo
from pipetrain.runner.tracking.records import MetricsFile
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.trackers import identity

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="Weights & Biases is not installed")

WORDS = (
    "model=lenet5", "dataset.limit=160", "train.batch_size=32", "threads=1", "partition.stages=2", "log.to=[wandb]",
)  # fmt: skip
OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
_HEADER, _BLOCK, _OF_PART = 7, 32768, 7
"""Bytes before the first block of a file, of a block, and before each part of a record."""


def offline_runs(folder):
    return sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))


def read(file):
    """The records of a file in LevelDB's log format, in order, by their kinds."""
    from wandb.proto.wandb_internal_pb2 import Record  # here, as every process collects this module

    data, place, part, found = file.read_bytes(), _HEADER, b"", []
    while place + _OF_PART <= len(data):
        if _BLOCK - place % _BLOCK < _OF_PART:
            place += _BLOCK - place % _BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + _OF_PART : place + _OF_PART + length]
        place += _OF_PART + length
        if kind in (1, 4):  # a whole record, or its last part
            record, part = Record.FromString(part), b""
            found.append((record.WhichOneof("record_type"), record))
    return found


def history(records):
    rows = (record.history.item for kind, record in records if kind == "history")
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


def run(tmp_path, name, *words, code=0, **environment):
    given = ("run", *WORDS, *words, f"hydra.run.dir={name}")
    done = cli.pipetrain(*given, cwd=tmp_path, **{**OFFLINE, **environment})
    assert done.returncode == code, done.stderr
    return done


def test_process_of_its_own_that_is_lost_is_given_up(monkeypatch):
    from pipetrain.plugins.trackers import wandb

    def lost(_points):
        raise ConnectionResetError("Connection lost")

    given_up = []
    monkeypatch.setattr(wandb.wandb, "teardown", lambda: given_up.append(1) or 1 / 0)
    tracker = wandb.WandB()
    tracker._run, tracker._last = SimpleNamespace(log=lost), {}
    with pytest.raises(ConnectionResetError):
        tracker.on_record({"kind": "interval", "step": 1, "loss": 0.5, "lr": 0.1})
    assert given_up == [1]


@pytest.mark.slow
def test_offline_run_has_history_config_and_identity(tmp_path):
    run(tmp_path, "run", "method=pipeoptim", "train.epochs=2", WANDB_PROJECT="mine")
    (file,) = offline_runs(tmp_path)
    found = read(file)
    (started,) = [record.run for kind, record in found if kind == "run"]
    assert (started.project, started.display_name) == ("mine", "run")
    assert {"method:pipeoptim", "model:lenet5"} <= {*started.tags}
    config = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in started.config.update}
    assert config.items() >= {"method": "pipeoptim", "partition.stages": 2, "train.epochs": 2}.items()
    rows, records = history(found), cli.records(tmp_path / "run")
    for kind, field, name in (("interval", "loss", "train/loss"), ("eval", "eval_top1", "eval/top1")):
        expected = [(each["step"], each[field]) for each in records if each["kind"] == kind]
        assert [(row["step"], row[name]) for row in rows if name in row] == expected
    (exit_record,) = [record.exit for kind, record in found if kind == "exit"]
    assert exit_record.exit_code == 0
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == {"wandb": started.run_id}


@pytest.mark.slow
def test_resumed_run_keeps_its_id_and_an_end_other_than_completion_its_exit_code(tmp_path):
    run(tmp_path, "run", "train.epochs=1", "executor=simulated")
    run(tmp_path, "run", "train.epochs=2", "executor=simulated", "resume=auto")
    run(tmp_path, "diverged", "train.epochs=1", "executor=simulated", "optimizer.lr=1e9", code=3)
    files = [read(file) for file in offline_runs(tmp_path)]
    ids = [record.run.run_id for found in files for kind, record in found if kind == "run"]
    codes = [record.exit.exit_code for found in files for kind, record in found if kind == "exit"]
    by_id = {each: [code for own, code in zip(ids, codes, strict=True) if own == each] for each in ids}
    assert sorted(by_id.values()) == [[0, 0], [1]]


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({}, range(8)),
        ({"step/interval": 6}, (2, 5, 6, 7)),  # killed in the evaluation after step 6
        ({"step/interval": 6, "step/eval": 6}, (6, 7)),
        ({"step/interval": 8, "step/eval": 6}, ()),
    ],
)
def test_resumed_run_with_another_interval_logs_only_steps_after_the_last_sent(tmp_path, monkeypatch, known, missing):
    import wandb

    from pipetrain.plugins.trackers.wandb import WandB

    logged, summary = [], {**known}

    def log(row):
        logged.append(row)
        summary.update(row)

    server = SimpleNamespace(id="a", summary=summary, log=log, define_metric=lambda *_, **_more: None)
    monkeypatch.setattr(wandb, "init", lambda **_: server)
    directory = RunDirectory(tmp_path)
    identity.store_ids(directory, wandb="a")
    steps = [("interval", 2), ("interval", 4), ("eval", 4)]
    steps += [("interval", 5), ("interval", 6), ("eval", 6), ("interval", 7), ("interval", 8)]
    made = {"interval": {"loss": 0.5, "lr": 0.1}, "eval": {"eval_loss": 0.5, "eval_s": 1.0}}
    records = [{"kind": kind, "step": step, **made[kind]} for kind, step in steps]
    file = MetricsFile(directory, 0)
    file.write({"kind": "start", "step": 0})
    for record in records[:3]:
        file.write(record)
    tracker = WandB()
    tracker.on_start(RunInfo(tmp_path, {}, {}, 4))
    for record in records[3:]:
        tracker.on_record(record)
    expected = [steps[i] for i in missing]
    assert [(kind, row["step"]) for row in logged for kind in made if f"step/{kind}" in row] == expected
    tracker.on_start(RunInfo(tmp_path, {}, {}, 8))
    assert len(logged) == len(expected)


@pytest.mark.slow
def test_runs_of_a_sweep_are_a_group(tmp_path):
    words = ("run", "--multirun", "method=gpipe,pipedream", *WORDS, "executor=simulated", "train.max_steps=2")
    done = cli.pipetrain(*words, "hydra.sweep.dir=sweep", cwd=tmp_path, **OFFLINE)
    assert done.returncode == 0, done.stderr
    found = [record.run for file in offline_runs(tmp_path) for kind, record in read(file) if kind == "run"]
    assert {each.run_group for each in found} == {"sweep"}
    assert sorted(each.display_name for each in found) == ["sweep/0_gpipe", "sweep/1_pipedream"]
