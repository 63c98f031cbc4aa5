"""metrics.csv has the records of metrics.jsonl."""

import csv
import math
import os
import signal
from dataclasses import replace

import pytest
from support.worker_pool import job, on, simulated

from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.launch.worker import run_simulated
from pipetrain.runner.tracking import records
from pipetrain.runner.tracking.callbacks import RunInfo
from pipetrain.runner.tracking.records import MetricsFile
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.trackers.csv_file import CsvFile
from pipetrain.runner.training.checkpoint import store

LONG = {"train": {"epochs": 2}, "checkpoint": {"every_epochs": 1}, "log": {"to": ["csv"]}}


def table(run):
    with run.metrics_table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def as_text(record, columns):
    return {name: "" if record.get(name) is None else str(record[name]) for name in columns}


def assert_same(run):
    rows, found = table(run), records.read_records(run)
    assert rows == [as_text(record, rows[0]) for record in found]
    return rows


def test_table_has_every_record_and_every_field(tmp_path):
    made = job(tmp_path, "pipedream", 2, **LONG)
    simulated(made)
    rows = assert_same(made.run)
    assert [row["step"] for row in rows if row["kind"] == "interval"] == [str(step) for step in range(1, 13)]
    assert list(rows[0])[:4] == ["kind", "step", "epoch", "wall_s"]
    assert {"loss", "lr", "eval_loss", "stage1_idle_share"} <= rows[0].keys()


def test_resumed_run_drops_rows_after_its_checkpoint(tmp_path):
    whole = job(tmp_path / "whole", "pipedream", 2, **LONG)
    simulated(whole)
    made = on("simulated", job(tmp_path / "run", "pipedream", 2, **LONG))
    made.run.path.mkdir()
    simulated(made)
    newest = store.checkpoints(made.run.path)
    resumed = replace(made, resume=newest[0].resolve())
    simulated(resumed)
    rows = assert_same(made.run)
    assert [row["step"] for row in rows if row["kind"] == "interval"] == [str(step) for step in range(1, 13)]
    assert list(rows[0]) == list(table(whole.run)[0])
    assert [row["loss"] for row in rows if row["kind"] == "epoch"] == [
        row["loss"] for row in table(whole.run) if row["kind"] == "epoch"
    ]


def test_interrupted_run_has_a_row_for_each_record(tmp_path):
    made = on("simulated", job(tmp_path, "gpipe", 2, **LONG))

    def show(record):
        if record["kind"] == "interval" and record["step"] == 8:
            os.kill(os.getpid(), signal.SIGINT)

    run_simulated(made, show, Interruption())
    assert_same(made.run)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_is_empty_as_in_metrics_jsonl(tmp_path, value):
    run = RunDirectory(tmp_path)
    file, csv_file = MetricsFile(run, 0), CsvFile()
    csv_file.on_start(RunInfo(tmp_path, {}, {}))
    for step in (1, 2):
        record = {"kind": "eval", "step": step, "eval_loss": value}
        file.write(record)
        csv_file.on_record(record)
    assert [row["eval_loss"] for row in table(run)] == ["", ""]
