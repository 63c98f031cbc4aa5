"""What runs are called beside each other."""

from pathlib import Path

from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.names import kind_of, names


def run(asked, **settings):
    return ComparedRun(Path("a"), "completed", settings={**asked, **settings}, asked=list(asked))


def test_runs_are_called_by_what_was_asked_for_and_differs():
    runs = [
        run({"method": "gpipe", "model": "lenet5", "optimizer.lr": 0.1}, schedule="gpipe"),
        run({"method": "pipedream", "model": "lenet5", "optimizer.lr": 0.2}, schedule="1f1b"),
    ]
    assert names(runs) == ["gpipe lr=0.1", "pipedream lr=0.2"]


def test_what_follows_from_the_method_is_left_out_of_names():
    runs = [run({"method": "pipemare"}, **{"method.t1": True}), run({"method": "gpipe"}, method="gpipe")]
    assert names(runs) == ["pipemare", "gpipe"]


def test_value_that_only_one_run_was_given_is_told_of_all():
    runs = [run({"partition.stages": 4}, method="gpipe"), run({}, method="gpipe", **{"partition.stages": 2})]
    assert names(runs) == ["stages=4", "stages=2"]


def test_settings_that_end_alike_are_told_in_full():
    runs = [run({"train.batch_size": 1, "eval.batch_size": 2}), run({"train.batch_size": 3, "eval.batch_size": 4})]
    assert names(runs) == ["eval.batch_size=2 train.batch_size=1", "eval.batch_size=4 train.batch_size=3"]


def test_runs_that_nobody_asked_to_differ_are_told_apart_all_the_same():
    runs = [run({"method": "pipemare"}, **{"method.t1": flag}) for flag in (True, False)]
    assert names(runs) == ["t1=true", "t1=false"]


def test_single_run_is_called_by_its_method():
    assert names([run({"method": "gpipe", "optimizer.lr": 0.1})]) == ["gpipe"]


def test_seed_and_what_is_only_recorded_do_not_make_runs_different():
    one = run({"method": "gpipe", "seed": 1, "log.every_steps": 2, "resume": "auto", "method.seed": 1})
    other = run({"method": "gpipe", "seed": 2})
    assert kind_of(one) == kind_of(other)
    assert kind_of(one) != kind_of(run({"method": "gpipe", "optimizer.lr": 1}))


def test_of_many_settings_that_nobody_asked_to_differ_as_few_are_told_as_tell_runs_apart():
    follows = {f"model.{name}": 1 for name in ("depth", "width", "classes")}
    runs = [
        run({}, model="a", **follows),
        run({}, model="b", **{name: value + 1 for name, value in follows.items()}),
        run({}, model="b", **{name: value + 1 for name, value in follows.items()}, threads=1),
    ]
    assert names(runs) == ["model=a", "model=b", "model=b threads=1"]


def test_control_characters_of_a_run_do_not_reach_the_terminal():
    assert names([run({"method": "a\x1b[31m"})]) == ["a?[31m"]
    assert names([run({"method": "a\x1b[31m"}), run({"method": "b"})]) == ["a?[31m", "b"]
