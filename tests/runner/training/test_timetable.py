"""When a run drains, evaluates, saves and ends."""

import pytest
from hypothesis import given
from hypothesis import settings as quickly
from hypothesis import strategies as st
from support.refusals import assert_refused
from support.worker_pool import job, phase, settings, simulated

from pipetrain.runner.training.timetable import Timetable, timetable_of


def timetable(*phases, **train):
    return timetable_of(settings("gpipe", phases=list(phases), train={"epochs": 5, **train}), 10)


def test_phases_end_the_run_where_the_last_has_an_end_of_its_own():
    first, second = phase("gpipe", epochs=2), phase("pipedream", steps=7)
    assert (timetable(first, second).total_steps, timetable(first, second).phase_ends) == (27, [20, 27])
    assert timetable(first, second, max_steps=23).phase_ends == [20, 23]
    assert timetable(first, phase("pipedream")).phase_ends == [20, 50]


def test_phase_that_never_starts_is_refused(tmp_path):
    phases = [phase("gpipe", epochs=2), phase("pipedream")]
    assert_refused(r"phases\[1\] .* 12, .* 12", lambda: simulated(job(tmp_path / "run", "gpipe", 2, phases=phases)))


@st.composite
def timetables(draw):
    total = draw(st.integers(1, 60))
    return Timetable(
        total_steps=total,
        steps_per_epoch=draw(st.integers(1, 12)),
        evaluate_every=draw(st.integers(0, 4)),
        save_every=draw(st.integers(0, 4)),
        save_every_steps=draw(st.none() | st.integers(1, 9)),
        phase_ends=[*sorted(draw(st.sets(st.integers(1, total), max_size=3)) - {total}), total],
    )


def drains(table, step):
    """Whether something happens after `step` steps that the pipeline must be empty for."""
    ends_epoch = step % table.steps_per_epoch == 0 or step == table.total_steps
    saves = table.save_every_steps is not None and step % table.save_every_steps == 0
    return ends_epoch or saves or step in table.phase_ends


@quickly(max_examples=200)
@given(timetables(), st.data())
def test_drain_intervals_are_those_of_a_plain_loop_over_steps(table, data):
    first = data.draw(st.integers(0, table.total_steps))
    expected, began = [], first
    for step in range(first + 1, table.total_steps + 1):
        assert table.drains(step) == drains(table, step)
        if drains(table, step):
            expected.append((began, step))
            began = step
    found = list(table.intervals(first))
    assert [(each.start, each.start + each.minibatches) for each in found] == expected
    for each in found:
        assert divmod(each.start, table.steps_per_epoch) == (each.epoch, each.first)
        assert each.last <= table.steps_per_epoch
        assert each.phase == sum(end <= each.start for end in table.phase_ends)


@quickly(max_examples=200)
@given(timetables())
def test_run_drains_before_it_evaluates_or_saves(table):
    ends = {each.start + each.minibatches for each in table.intervals(0)}
    for step in range(1, table.total_steps + 1):
        if table.evaluates(step) or table.saves(step):
            assert step in ends
    assert table.saves(table.total_steps)
    assert table.evaluates(table.total_steps) is (table.evaluate_every > 0)


def test_run_evaluates_and_saves_every_n_epochs_and_at_end():
    table = Timetable(25, 5, evaluate_every=2, save_every=3, save_every_steps=None, phase_ends=[25])
    assert [step for step in range(1, 26) if table.evaluates(step)] == [10, 20, 25]
    assert [step for step in range(1, 26) if table.saves(step)] == [15, 25]
    seldom = Timetable(12, 5, evaluate_every=0, save_every=0, save_every_steps=4, phase_ends=[12])
    assert [step for step in range(1, 13) if seldom.evaluates(step)] == []
    assert [step for step in range(1, 13) if seldom.saves(step)] == [4, 8, 12]


def test_evaluations_after_a_multiple_of_epochs_decode_and_the_last():
    table = Timetable(45, 5, 2, 0, None, [45], decode_every=3)
    assert [step // 5 for step in range(1, 46) if table.evaluates(step)] == [2, 4, 6, 8, 9]
    assert [step // 5 for step in range(1, 46) if table.decodes(step)] == [6, 9]


def test_run_that_keeps_the_best_also_saves_where_it_evaluates():
    kept = {"eval": {"every_epochs": 2}, "checkpoint": {"every_epochs": 0, "keep_best": 1}, "train": {"epochs": 5}}
    table = timetable_of(settings("gpipe", **kept), 5)
    assert [step for step in range(1, 26) if table.saves(step)] == [10, 20, 25]


@pytest.mark.parametrize(("max_steps", "total"), [(None, 50), (7, 7), (80, 50)])
def test_epochs_or_max_steps_end_the_run_whichever_comes_first(max_steps, total):
    assert timetable_of(settings("gpipe", train={"epochs": 5, "max_steps": max_steps}), 10).total_steps == total
