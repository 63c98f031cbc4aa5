"""What trace.json holds, and what of it a resumed run keeps."""

import json

import pytest

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.times import TimeSpan
from pipetrain.engine.program.trace import TracedList
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.placement import Placement
from pipetrain.reporting.timeline.from_run import read_trace
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.trace_writer import TraceFile, assemble

INTERVALS = [DrainInterval(0, 0, 2, 0), DrainInterval(0, 2, 4, 2), DrainInterval(1, 0, 1, 4, phase=1)]


def write(run, intervals, stage=0, step=0, clock=0.0):
    rules = PipelineRules(OneFOneB(), PipeDream(), 2, 1)
    file = TraceFile(run, stage, step, 2)
    for interval in intervals:
        planned = rules.planned(stage, interval.minibatches, interval.start)
        spans = [TimeSpan(clock + i, 0.5) for i in range(len(planned))]
        file.add(interval, [TracedList(stage, planned, interval.start, interval.start, spans)], clock + 9.0)
    file.close()


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def assembled(run, tmp_path):
    assemble(run, Placement.one_each(2))
    trace = json.loads((tmp_path / "trace.json").read_text())
    return trace, [DrainInterval(**each) for each in trace["metadata"]["drain_intervals"]]


def test_process_with_several_stages_has_one_track_whose_events_name_their_stage(run, tmp_path):
    for stage in (0, 1):
        write(run, INTERVALS, stage)
    assemble(run, Placement.v_shaped(2))
    names, events = [], []
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        (events if event["ph"] == "X" else names).append(event)
    assert [(event["tid"], event["args"]["name"]) for event in names] == [(0, "stages 0 and 1")]
    assert {(event["tid"], event["args"]["stage"]) for event in events} == {(0, 0), (0, 1)}
    by_stage = read_trace(run.trace, 2)
    assemble(run, Placement.one_each(2))
    assert by_stage == read_trace(run.trace, 2)


def test_trace_names_every_drain_once_for_any_process_count(run, tmp_path):
    for stage in (0, 1):
        write(run, INTERVALS, stage)
    trace, intervals = assembled(run, tmp_path)
    assert intervals == INTERVALS
    updates = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "U" and event["tid"] == 0]
    assert updates == ["U0", "U1", "U2", "U3", "U4"]
    reads = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "F" and event["tid"] == 0]
    assert reads == ["F0.0@v0", "F1.0@v0", "F2.0@v2", "F3.0@v2", "F4.0@v4"]


def test_resumed_run_drops_trace_after_its_checkpoint(run, tmp_path):
    write(run, INTERVALS)
    write(run, INTERVALS[1:2], step=2)
    trace, intervals = assembled(run, tmp_path)
    assert intervals == INTERVALS[:2]
    assert max(event["args"].get("minibatch", 0) for event in trace["traceEvents"]) == 3


def test_resumed_run_continues_the_time_of_its_trace(run, tmp_path):
    for stage in (0, 1):
        write(run, INTERVALS[:1], stage)
    for stage in (0, 1):
        write(run, INTERVALS[1:], stage, step=2)  # on a clock that begins at 0 again, as after a reboot
    trace, intervals = assembled(run, tmp_path)
    assert intervals == INTERVALS
    spans = [[], []]
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            spans[event["args"]["minibatch"] >= 2].append((event["ts"], event["ts"] + event["dur"]))
    assert min(start for start, _ in spans[1]) == max(end for _, end in spans[0])


def test_clocks_of_several_machines_are_brought_together(run, tmp_path, monkeypatch):
    for stage in (0, 1):
        monkeypatch.setattr("platform.node", lambda stage=stage: f"machine {stage}")
        write(run, INTERVALS[:2], stage, clock=1e6 * stage)
    trace, _ = assembled(run, tmp_path)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [min(event["ts"] for event in events if event["tid"] == stage) for stage in (0, 1)] == [0.0, 0.0]


def test_half_a_last_line_is_left_out(run, tmp_path):
    write(run, INTERVALS[:2])
    write(run, INTERVALS[:2], stage=1)
    part = run.trace_parts / "process-00001.jsonl"
    part.write_text(part.read_text()[:-20])  # what a full disk leaves
    _, intervals = assembled(run, tmp_path)
    assert intervals == INTERVALS[:2]
    write(run, INTERVALS[1:], stage=1, step=2)
    _, intervals = assembled(run, tmp_path)
    assert intervals == INTERVALS


def test_killed_process_keeps_its_trace_before_the_checkpoint(run):
    write(run, INTERVALS[:1])
    part = run.trace_parts / "process-00000.jsonl"
    before = part.read_text()
    file = TraceFile(run, 0, 2, 2)
    assert part.read_text().startswith(before)  # all that a kill leaves
    file.close()
