"""Tuning, then seeds, on runs that are made up."""

from itertools import groupby

import pytest
from support.made_up_runs import DIVERGED, FAILED, MadeUpRuns, contender, contenders, falling

from pipetrain.reporting.comparison.compare import Request, _Work
from pipetrain.reporting.comparison.contenders import distinguished
from pipetrain.reporting.comparison.progress import Progress
from pipetrain.reporting.comparison.results import Comparison
from pipetrain.reporting.comparison.tuning import Grid

SPEEDS = {"gpipe": 0.008, "pipedream": 0.006, "naive_async": 0.002}


def rate_of(planned):
    return float(planned.candidate[0].partition("=")[2])


def result_of(planned):
    """Best at a rate of 0.1; a rate above 0.2 diverges; the slope of the loss depends on the method and the seed."""
    if rate_of(planned) > 0.2:
        return DIVERGED
    slope = SPEEDS[planned.contender.method] * (1.0 if rate_of(planned) == 0.1 else 0.5)
    return falling(slope * (1 + 0.01 * (planned.seed % 7)))


def carried_out(tmp_path, runs, *methods, every=None, **request):
    every = every or contenders(*(methods or ("gpipe", "pipedream")))
    asked = Request(**{"seeds": 3, "tuning_seeds": 1, **request})
    work = _Work(every, runs, asked)
    work.carry_out()
    return Comparison(tmp_path, work.outcomes(), every[0].method, None, asked.seeds)


@pytest.fixture
def runs():
    return MadeUpRuns(result_of)


def test_all_are_tuned_before_each_seed_of_all_runs(tmp_path, runs):
    carried_out(tmp_path, runs)
    kinds = ["tuning" if run.tunes else run.seed for run in runs.order]
    assert [kind for kind, _ in groupby(kinds)] == ["tuning", 0, 1, 2]
    methods = [run.contender.method for run in runs.order if not run.tunes]
    assert methods == ["gpipe", "pipedream"] * 3


def test_progress_counts_the_runs_that_are_known_to_be_needed(tmp_path, runs, monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "show", lambda _, *seen: shown.append(seen))
    carried_out(tmp_path, runs)
    assert [ended for ended, *_ in shown] == [*range(1, runs.started)]
    assert all(ended + left == total for ended, total, _, left in shown)
    totals = [total for _, total, *_ in shown]
    assert (totals[0], totals[-1]) == (2 * (3 + 3), runs.started)
    assert shown[0][2] == "tuning gpipe optimizer.lr=0.1 seed=1000"
    assert shown[-1][2].startswith("running gpipe optimizer.lr=0.1 seed=2")


def test_tuning_seeds_are_others_than_the_reported_ones(tmp_path, runs):
    found = carried_out(tmp_path, runs, tuning_seeds=2)
    assert {run.seed for run in runs.order if run.tunes} == {1000, 1001}
    assert {planned.seed for each in found.outcomes for planned, _ in each.reported} == {0, 1, 2}


def test_diverged_rate_is_not_chosen(tmp_path, runs):
    found = carried_out(tmp_path, runs)
    assert [each.tuning.best for each in found.outcomes] == [("optimizer.lr=0.1",)] * 2


def test_mean_over_tuning_seeds_is_infinite_if_one_diverges(tmp_path):
    def unstable(planned):
        return DIVERGED if planned.seed == 1001 and rate_of(planned) == 0.1 else result_of(planned)

    found = carried_out(tmp_path, MadeUpRuns(unstable), "gpipe", tuning_seeds=2)
    assert found.outcomes[0].tuning.best == ("optimizer.lr=0.0333",)


def test_further_methods_and_seeds_add_only_their_runs(tmp_path, runs):
    first = carried_out(tmp_path, runs)
    count = runs.started
    assert carried_out(tmp_path, runs).report.heads == first.report.heads
    assert runs.started == count
    found = carried_out(tmp_path, runs, "gpipe", "pipedream", "naive_async", seeds=4)
    new = runs.order[count:]
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


@pytest.mark.parametrize("most", [0, 2, 8])
def test_end_of_the_time_leaves_results_that_say_what_is_missing(tmp_path, capsys, most):
    runs = MadeUpRuns(result_of, most)
    found = carried_out(tmp_path, runs)
    assert runs.started == most
    assert capsys.readouterr().out.startswith(f"tuning: {min(most, 6)} runs")
    if most < 6:
        assert [line.partition(": ")[2].partition(": ")[0] for line in found.missing] == ["tuning is not finished"] * 2
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


def test_failed_runs_count_as_diverged_and_give_their_reason(tmp_path, capsys):
    runs = MadeUpRuns(lambda planned: FAILED if rate_of(planned) < 0.05 else result_of(planned))
    found = carried_out(tmp_path, runs, "gpipe")
    assert found.outcomes[0].tuning.best == ("optimizer.lr=0.1",)
    assert found.failed
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "tuning: 3 runs, 1 failed, 1 diverged"
    assert second.endswith(": out of memory")


def test_rate_that_is_given_is_not_tuned(tmp_path, runs):
    carried_out(tmp_path, runs, every=distinguished([contender("gpipe", grid=Grid((("optimizer.lr=0.1",),)))]))
    assert not any(run.tunes for run in runs.order)
