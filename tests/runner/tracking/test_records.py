"""metrics.jsonl, written and read."""

from pathlib import Path

import pytest

from pipetrain.runner.tracking.records import MetricsFile, copy_records_until, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def write(run, steps, after=0):
    file = MetricsFile(run, after)
    for step in steps:
        file.write({"step": step, "written_after": after})
    return file


def steps_in(run):
    return [record["step"] for record in read_records(run)]


def test_records_are_read_as_soon_as_they_are_written_and_forgotten_by_a_fresh_run(run):
    assert read_records(run) == []
    file = write(run, [1, 2])
    assert steps_in(run) == [1, 2]
    file.close()
    write(run, [1]).close()
    assert steps_in(run) == [1]


def test_folder_in_place_of_the_records_is_an_error_that_names_it(run):
    file = write(run, [1])
    run.metrics.unlink()
    run.metrics.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        file.write({"step": 2})
    assert caught.value.filename == str(run.metrics)
    file.close()


def test_resumed_run_keeps_the_records_up_to_its_checkpoint(run):
    write(run, [1, 2, 3, 4]).close()
    write(run, [3, 4, 5], after=2).close()
    assert [(record["step"], record["written_after"]) for record in read_records(run)] == [
        (1, 0), (2, 0), (3, 2), (4, 2), (5, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line", ["{not json", "[1]", '{"loss": 1}', "\0\0\0", '{"step": 2, "lo{"step": 3}', '{"step": -1}']
)
def test_line_that_is_no_record_is_left_out(run, line):
    write(run, [1]).close()
    with run.metrics.open("a") as file:
        file.write(f'{line}\n{{"step": 4}}\n{{"step": 5, "lo')  # the last line is still being written
    assert steps_in(run) == [1, 4]


def test_run_takes_over_the_records_of_the_one_that_it_continues(run, tmp_path):
    write(run, [1, 2, 3]).close()
    new = RunDirectory(tmp_path / "new")
    new.path.mkdir()
    copy_records_until(run, new, 2)
    write(new, [3], after=2).close()
    assert [(record["step"], record["written_after"]) for record in read_records(new)] == [(1, 0), (2, 0), (3, 2)]


def test_resumption_that_is_killed_loses_no_record(run, monkeypatch):
    write(run, [1, 2, 3]).close()

    def killed(_self, _target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write(run, [], after=2)
    assert steps_in(run) == [1, 2, 3]


def test_file_removed_mid_run_returns_with_all_records(run, caplog):
    file = write(run, [1, 2])
    run.metrics.unlink()
    for step in (3, 4):
        file.write({"step": step})
    file.close()
    assert steps_in(run) == [1, 2, 3, 4]
    assert [str(run.metrics) in each.message for each in caplog.records] == [True]
