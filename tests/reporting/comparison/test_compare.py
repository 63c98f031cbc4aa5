"""Tuning, then seeds in rounds, on runs that are made up."""

from dataclasses import replace
from itertools import groupby

import pytest
from support.made_up_runs import DIVERGED, FAILED, STEPS, MadeUpRuns, contender, contenders, falling

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.comparison import compare
from pipetrain.reporting.comparison.compare import Request, _Work
from pipetrain.reporting.comparison.contenders import distinguished
from pipetrain.reporting.comparison.halving import Axis
from pipetrain.reporting.comparison.results import Comparison

SPEEDS = {"gpipe": 0.008, "pipedream": 0.006, "naive_async": 0.002}


def rate_of(planned):
    return float(planned.candidate[0].partition("=")[2])


def result_of(planned):
    """Best at a rate of 0.1; a rate above 0.2 diverges; the slope of the loss depends on the method and the seed."""
    if rate_of(planned) > 0.2:
        return DIVERGED
    slope = SPEEDS[planned.contender.method] * (1.0 if rate_of(planned) == 0.1 else 0.5)
    return falling(slope * (1 + 0.01 * (planned.seed % 7)), planned.steps)


def work(runs, *methods, every=None, tuning_seeds=1, **request):
    every = every or contenders(*(methods or ("gpipe", "pipedream")))
    every = [replace(each, tuning_seeds=tuning_seeds) for each in every]
    return _Work(every, runs, Request(**{"seeds": 3, **request}), every[0].method)


def carried_out(tmp_path, runs, *methods, **request):
    of = work(runs, *methods, **request)
    of.carry_out(tmp_path)
    return of.comparison(tmp_path)


@pytest.fixture(autouse=True)
def written(monkeypatch):
    """The comparisons that would be written to files; drawing takes a while."""
    found = []
    monkeypatch.setattr(Comparison, "write", lambda comparison: found.append(comparison))
    return found


@pytest.fixture
def runs():
    return MadeUpRuns(result_of)


def test_all_are_tuned_before_seeds_run_round_by_round(tmp_path, runs):
    carried_out(tmp_path, runs)
    kinds = [(run.tunes, run.steps if run.tunes else run.seed) for run in runs.order]
    assert [kind for kind, _ in groupby(kinds)] == [(True, 50), (True, 100), (False, 0), (False, 1), (False, 2)]
    methods = [run.contender.method for run in runs.order if not run.tunes]
    assert methods == ["gpipe", "pipedream"] * 3


def test_tuning_seeds_are_others_than_the_reported_ones(tmp_path, runs):
    found = carried_out(tmp_path, runs, tuning_seeds=2)
    tuning = {run.seed for run in runs.order if run.tunes}
    assert tuning == {1000, 1001}
    assert {planned.seed for each in found.outcomes for planned, _ in each.reported} == {0, 1, 2}


def test_diverged_rate_is_not_chosen_and_is_counted(tmp_path, runs):
    found = carried_out(tmp_path, runs)
    assert [each.tuning.best for each in found.outcomes] == [("optimizer.lr=0.1",)] * 2
    assert found.notes[0] == "gpipe: 1 of 5 trials diverged, with optimizer.lr=0.3"


def test_mean_over_tuning_seeds_is_infinite_if_one_diverges(tmp_path):
    def unstable(planned):
        return DIVERGED if planned.seed == 1001 and rate_of(planned) == 0.1 else result_of(planned)

    found = carried_out(tmp_path, MadeUpRuns(unstable), "gpipe", tuning_seeds=2)
    assert found.outcomes[0].tuning.best == ("optimizer.lr=0.0333",)


def test_second_call_starts_no_run_again(tmp_path, runs):
    first = carried_out(tmp_path, runs)
    count = runs.started
    assert carried_out(tmp_path, runs).report.heads == first.report.heads
    assert runs.started == count


def test_further_methods_and_seeds_add_only_their_runs(tmp_path, runs):
    carried_out(tmp_path, runs)
    before = runs.started
    found = carried_out(tmp_path, runs, "gpipe", "pipedream", "naive_async", seeds=4)
    new = runs.order[before:]
    assert [run.seed for run in new if run.contender.method != "naive_async"] == [3, 3]
    assert [len(each.reported) for each in found.outcomes] == [4, 4, 4]


def test_names_that_grow_with_further_settings_find_their_runs(tmp_path, runs):
    stages = [contender(method, "partition.stages=4") for method in ("gpipe", "pipedream")]
    carried_out(tmp_path, runs, every=distinguished(stages))
    count = runs.started
    more = distinguished([*stages, contender("gpipe", "partition.stages=8")])
    assert [each.name for each in more] == ["gpipe stages=4", "pipedream stages=4", "gpipe stages=8"]
    carried_out(tmp_path, runs, every=more)
    assert {run.contender.name for run in runs.order[count:]} == {"gpipe stages=8"}


@pytest.mark.parametrize("most", [0, 3, 7, 12])
def test_end_of_the_time_leaves_results_that_say_what_is_missing(tmp_path, most):
    runs = MadeUpRuns(result_of, most)
    found = carried_out(tmp_path, runs)
    assert runs.started == most
    if most < 8:
        assert found.missing == ["gpipe: tuning is not finished", "pipedream: tuning is not finished"]
        assert found.report.heads == ["No run of gpipe, the baseline, has completed."]
    else:
        assert found.missing == ["gpipe: 2 of 3 seeds have not run", "pipedream: 2 of 3 seeds have not run"]
        assert "undecided after 1 seed" in found.report.heads[0]
    runs.most = 1000
    assert not carried_out(tmp_path, runs).missing


def test_contender_that_always_diverges_has_no_reported_seeds(tmp_path):
    runs = MadeUpRuns(lambda planned: DIVERGED if planned.contender.method == "pipedream" else result_of(planned))
    found = carried_out(tmp_path, runs)
    assert found.missing == ["pipedream: every setting that was tried diverged or failed"]
    assert found.report.heads[0].startswith("gpipe lr=0.1 is the fastest: ")


def test_failed_runs_count_as_diverged_and_give_their_reason(tmp_path):
    runs = MadeUpRuns(lambda planned: FAILED if rate_of(planned) < 0.05 else result_of(planned))
    found = carried_out(tmp_path, runs, "gpipe")
    assert "gpipe: 1 of 3 trials failed, with optimizer.lr=0.0333: out of memory" in found.notes


def test_contender_is_tuned_at_its_own_lengths(tmp_path, runs):
    carried_out(tmp_path, runs, every=distinguished([contender("gpipe", rungs=(STEPS,))]))
    assert {run.steps for run in runs.order} == {STEPS}


def test_rate_that_is_given_is_not_tuned(tmp_path, runs):
    carried_out(tmp_path, runs, every=distinguished([contender("gpipe", axes=(Axis("optimizer.lr", ("0.1",)),))]))
    assert not any(run.tunes for run in runs.order)


def test_results_are_written_after_each_round_of_seeds(tmp_path, runs, written):
    carried_out(tmp_path, runs)
    assert [[len(each.reported) for each in found.outcomes] for found in written] == [[1, 1], [2, 2]]


def test_baseline_without_configuration_is_refused(monkeypatch):
    monkeypatch.setattr(compare, "contenders_of", lambda *_: (contenders("pipedream", "gpipe"), []))
    with pytest.raises(ConfigError, match=r"^--baseline stale: is not compared; choose from pipedream, gpipe$"):
        compare.compare(["method=pipedream,gpipe"], Request(baseline="stale"))
