"""A trace read back."""

import json

import pytest
from support.pages import event, trace_text
from support.refusals import assert_refused

from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Operation
from pipetrain.reporting.timeline.from_run import median_times, read_trace, timeline_of_run
from pipetrain.runner.config.composition import composed

EVENTS = [
    event(1, "recv F0.0", 0.1, 0.5),
    event(1, "B0@v0+1", 2.0, 0.6),
    event(1, "U0", 2.6, 0.1),
    event(1, "F0.0@v0+1", 0.6, 0.2),
    event(1, "F0.1@v0+1", 0.8, 0.4),
    event(0, "F3.0@v2", 0.0, 0.5),
    event(0, "U3", 1.0, 0.3),
    event(0, "U4", 2.0, 0.5),
]
INTERVALS = [
    {"epoch": 0, "first": 0, "last": 1, "start": 0, "phase": 0},
    {"epoch": 1, "first": 0, "last": 2, "start": 3, "phase": 1},
]


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "trace.json").write_text(trace_text(EVENTS, 2, INTERVALS))
    return read_trace(tmp_path / "trace.json", 2)


def test_trace_gives_operations_by_time_and_messages_apart(trace):
    assert [box.name for box in trace.rows[1]] == ["F0.0@v0+1", "F0.1@v0+1", "B0@v0+1", "U0"]
    assert [box.start for box in trace.rows[1]] == pytest.approx([0.6, 0.8, 2.0, 2.6])
    assert trace.rows[0][0].staleness == 1
    assert [(m.what, m.operation, m.end) for m in trace.messages[1]] == [("recv", Operation.parse("F0.0"), 0.6)]


def test_trace_medians_are_of_a_microbatch_and_of_an_update(trace):
    found = median_times(trace, 2)
    assert found.forward == pytest.approx([0.5, 0.3])
    assert found.backward == pytest.approx([0.0, 0.3])
    assert found.update == pytest.approx([0.4, 0.1])
    assert found.duration(1, Operation.parse("B7")) == pytest.approx(0.6)


def test_part_of_a_trace_holds_its_minibatches_alone(trace):
    assert [box.name for box in trace.of_minibatches(3, 4).rows[0]] == ["F3.0@v2", "U3"]
    assert trace.of_minibatches(3, 4).messages == [[], []]


def test_trace_knows_the_drain_intervals_of_the_run(trace):
    assert trace.intervals == [DrainInterval(0, 0, 1, 0), DrainInterval(1, 0, 2, 3, phase=1)]
    assert trace.of_minibatches(3, 5).intervals == trace.intervals[1:]


@pytest.mark.parametrize("text", ["", "{}", '{"traceEvents": [{"ph": "X"}]}', trace_text([event(2, "U0", 0, 1)], 3)])
def test_trace_of_another_number_of_stages_is_refused(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    assert_refused(r"trace.json: not the trace of a run of 2 stages", read_trace, tmp_path / "trace.json", 2)


@pytest.mark.parametrize(
    "change",
    [
        {"intervals": [{**INTERVALS[0], "first": "0"}]},
        {"intervals": [{**INTERVALS[0], "last": 10**12}]},
        {"events": [{**EVENTS[0], "args": "F0.0"}]},
        {"events": [{**EVENTS[0], "dur": 10**400}]},
        {"events": [{**EVENTS[0], "ts": float("nan")}]},
    ],
)
def test_trace_with_values_that_no_run_writes_is_refused(tmp_path, change):
    (tmp_path / "trace.json").write_text(
        trace_text(change.get("events", EVENTS), 2, change.get("intervals", INTERVALS))
    )
    assert_refused(r"trace.json: not the trace of a run of 2 stages", read_trace, tmp_path / "trace.json", 2)


@pytest.mark.parametrize(
    "plan", ["", "[]", '{"stages": 3}', '{"stages": []}', '{"stages": [{"first": 0, "last": null}]}']
)  # fmt: skip
def test_damaged_plan_is_refused_by_name(tmp_path, plan):
    (tmp_path / "config.yaml").write_text(json.dumps(composed(["model=lenet5"]).stored))
    (tmp_path / "trace.json").write_text("{}")
    (tmp_path / "plan.json").write_text(plan)
    assert_refused(f"{tmp_path}/plan.json: damaged: ", timeline_of_run, tmp_path, None, None, trust=False)
