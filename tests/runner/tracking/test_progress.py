"""Progress of a run on the terminal, and how much longer it will take."""

import io
import re
from types import SimpleNamespace

import pytest
from support.waiting import eventually

from pipetrain.runner.tracking.progress import ProgressBar, RunLength, announce


def test_last_epoch_may_be_cut_short():
    length = RunLength(10, 4)
    assert (length.epochs, [length.steps_of(epoch) for epoch in (1, 2, 3)]) == (3, [4, 4, 2])


LENGTH = RunLength(8, 4, [4, 8])


def of(kind, step, **more):
    return {"kind": kind, "step": step, "epoch": -(-step // 4), **more}


def of_steps(step, **more):
    return of("interval", step, **{"loss": 2.0, "samples": 50, "train_s": 0.5, "samples_per_second": 100.0, **more})


def shown(records, capsys, length=LENGTH, **options):
    bar = ProgressBar(length, "starting 2 processes", **options)
    for record in records:
        bar.update(record)
    bar.close()
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def clock(monkeypatch):
    """The seconds of a clock that stands still by itself."""
    now = [100.0]
    monkeypatch.setattr("pipetrain.runner.tracking.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def taking(seconds, records, clock):
    """Records, each of which comes so many seconds after the one before."""
    for record in records:
        clock[0] += seconds
        yield record


def test_start_and_epochs_are_lines_without_terminal(capsys):
    evaluation = of("eval", 4, eval_loss=1.25, eval_top1=60.0, eval_s=1.0)
    records = [of("start", 0), of_steps(1), of("epoch", 4, loss=1.5), evaluation, of("epoch", 8, loss=1.0)]
    assert shown(records, capsys, RunLength(8, 4, [4])) == [
        "starting 2 processes",
        "epoch 1/2 | step 4 | train loss 1.5000 | eval loss 1.25 top1 60",
        "epoch 2/2 | step 8 | train loss 1.0000",
    ]


def test_progress_is_an_occasional_line_without_terminal(capsys, clock):
    every, never = (
        [*shown(taking(0.5, [of_steps(1), of_steps(2)], clock), capsys, line_seconds=each)] for each in (1e-9, 0)
    )
    assert every[1:] == [
        "epoch 1/2 | step 1/8 | loss 2.0000 | 100 samples/s | 00:03 left",
        "epoch 1/2 | step 2/8 | loss 2.0000 | 100 samples/s | 00:03 left",
    ]
    assert never == ["starting 2 processes"]


def test_time_left_of_a_resumed_or_restarted_run_goes_by_its_own_steps_and_evaluations(capsys, clock):
    bar = ProgressBar(RunLength(100, 50, [50, 100]), "starting", step=40, line_seconds=1e-9)

    def left(step, seconds):
        clock[0] += seconds
        bar.update(of_steps(step))
        return capsys.readouterr().out.splitlines()[-1].rpartition(" | ")[2]

    clock[0] += 1000
    bar.update(of("start", 40))
    assert left(45, 1) == "00:11 left"
    assert left(60, 3) == "00:08 left"
    bar.begin_again("restarting from step 50", 50)
    assert left(60, 1) == "00:04 left"
    bar.close()


def test_speed_of_a_simulation_is_called_the_simulators(capsys):
    record = of("interval", 1, loss=2.0, samples=45, train_s=0.5)
    lines = shown([{**record, "simulator_samples_per_second": 90.0}], capsys, line_seconds=1e-9)
    assert "simulator 90 samples/s" in lines[-1]


def test_speed_shown_is_that_of_the_last_records_together(capsys):
    lines = shown([of_steps(1, train_s=0.25), of_steps(2, train_s=0.75)], capsys, line_seconds=1e-9)
    assert "| 100 samples/s |" in lines[-1]


def test_long_evaluation_is_an_occasional_line_without_terminal(capsys, clock):
    bar = ProgressBar(LENGTH, "starting")
    bar.update(of("epoch", 4, loss=1.5))
    for seconds in (9, 1, 59, 1, 30):
        clock[0] += seconds
        bar.tick()
    bar.update(of("eval", 4, eval_loss=1.0, eval_s=100.0))
    clock[0] += 100
    bar.tick()
    bar.close()
    assert capsys.readouterr().out.splitlines() == [
        "starting",
        "epoch 1/2 | step 4 | evaluating for 10 s",
        "epoch 1/2 | step 4 | evaluating for 70 s",
        "epoch 1/2 | step 4 | train loss 1.5000 | eval loss 1",
    ]


def test_bar_shows_an_evaluation_that_a_resumed_run_begins_with(monkeypatch):
    states = on_terminal(monkeypatch, [of("start", 4, evaluation_due=True), of("start", 3, evaluation_due=True)])
    shown = [*dict.fromkeys(states)]
    assert shown == ["starting 2 processes", "epoch 1/2  evaluating", "waiting for the first step"]


def test_bar_counts_the_seconds_by_itself(capsys, monkeypatch):
    monkeypatch.setattr("pipetrain.runner.tracking.progress._TICK_SECONDS", 0.01)
    monkeypatch.setattr("pipetrain.runner.tracking.progress._LONG_EVALUATION", 0.1)
    bar = ProgressBar(LENGTH, "starting")
    bar.update(of("epoch", 4, loss=1.5))
    said = []
    eventually(lambda: said.append(capsys.readouterr().out) or "evaluating for 0 s" in "".join(said))
    bar.close()


def test_hidden_progress_shows_nothing(capsys):
    assert shown([of_steps(1), of("epoch", 8, loss=1.0)], capsys, hidden=True) == []


def on_terminal(monkeypatch, records, columns=80):
    """The states of the bar on a terminal of so many columns, the last ones those it ends with."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda _file: (columns, 24))
    bar = ProgressBar(LENGTH, "starting 2 processes")
    for record in records:
        bar.update(record)
        bar.tick()
    bar.close()
    return [state.strip() for state in re.split(r"[\r\n]", terminal.getvalue()) if state.strip()]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_shows_what_it_waits_for_and_the_share_of_the_epoch(monkeypatch):
    records = [of("start", 0), of_steps(2), of("epoch", 4, loss=1.5), of("eval", 4, eval_loss=1.0, eval_s=1.0)]
    states = on_terminal(monkeypatch, [*records, of_steps(5)])
    assert states[0] == "starting 2 processes"
    assert "waiting for the first step" in states
    assert any(state.startswith("epoch 1/2  50%|") for state in states)
    assert "epoch 1/2  evaluating" in states
    assert states[-2] == "epoch 2/2  waiting for its first step"
    assert "epoch 1/2 | step 4 | train loss 1.5000 | eval loss 1" in states
    assert states[-1].startswith("epoch 2/2  25%|")


def test_bar_is_not_cut_at_80_columns(monkeypatch):
    long = of_steps(3, loss=12.3456, samples=123456 * 99_999, train_s=99_999.0)
    (state,) = {state for state in on_terminal(monkeypatch, [long]) if "%|" in state}
    assert re.fullmatch(r"epoch 1/2  75%\|.+\| loss 12.3456, 123456 samples/s, \d+:\d\d(:\d\d)? left", state)
    assert len(state) <= 80


def test_without_a_terminal_what_takes_long_is_told_in_a_line(capsys):
    with announce("pipeline 1 of 2"):
        pass
    with announce("pipeline 2 of 2", hidden=True):
        pass
    assert capsys.readouterr().err == "pipeline 1 of 2\n"
