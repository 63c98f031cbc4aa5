"""metrics.jsonl, written and read."""

import pytest

from pipetrain.tracking.metrics_file import MetricsFile, read
from pipetrain.tracking.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def write(run, steps, after=0):
    file = MetricsFile(run, after)
    for step in steps:
        file.write({"step": step, "written_after": after})
    return file


def test_every_record_can_be_read_as_soon_as_it_is_written(run):
    assert read(run) == []
    file = write(run, [1, 2])
    assert [record["step"] for record in read(run)] == [1, 2]
    file.close()


def test_line_still_being_written_is_left_out(run):
    write(run, [1]).close()
    with run.metrics.open("a") as file:
        file.write('{"step": 2, "lo')
    assert [record["step"] for record in read(run)] == [1]


def test_fresh_run_forgets_the_records_of_an_earlier_one(run):
    write(run, [1, 2, 3]).close()
    write(run, [1]).close()
    assert [record["step"] for record in read(run)] == [1]


def test_resumed_run_keeps_the_records_up_to_its_checkpoint(run):
    write(run, [1, 2, 3, 4]).close()
    write(run, [3, 4, 5], after=2).close()
    assert [(record["step"], record["written_after"]) for record in read(run)] == [
        (1, 0), (2, 0), (3, 2), (4, 2), (5, 2),
    ]  # fmt: skip
