"""What runs of a comparison come to: the report, its notes, and the files."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.made_up_runs import DIVERGED, contender, contenders, evaluated, falling, made_up

from pipetrain.reporting.comparison.contenders import distinguished
from pipetrain.reporting.comparison.costs import Costs
from pipetrain.reporting.comparison.results import FILES, Comparison, Outcome
from pipetrain.reporting.comparison.runs import PlannedRun
from pipetrain.reporting.comparison.tuning import Search
from pipetrain.reporting.sweep.columns import PREDICTED_STAGE, PREDICTED_STEP
from pipetrain.reporting.sweep.slowdown import SECONDS, STEPS
from pipetrain.reporting.sweep.sweep_tables import text

LR = "optimizer.lr=0.1"
TUNED = Search(best=(LR,))


def outcome(contender, *runs, tuning=TUNED):
    """Of a contender, with a run of each seed."""
    planned = [PlannedRun(contender, (LR,), seed) for seed in range(len(runs))]
    made = [
        made_up(each, {"method": contender.method, "seed": each.seed}, run)
        for each, run in zip(planned, runs, strict=True)
    ]
    return Outcome(contender, tuning, [], list(zip(planned, made, strict=True)))


def compared(tmp_path=Path(), target=("train_loss", 0.5), **runs):
    every = contenders(*runs)
    return Comparison(tmp_path, [outcome(c, *runs[c.method]) for c in every], every[0].method, target, 3)


def steady(*slopes):
    return [falling(slope) for slope in slopes]


def names(found):
    return [group.name for group in found.report.groups]


def row_of(found, name):
    """The row of the slowdown."""
    return found.report.slowdowns[0].rows[names(found).index(name)]


def test_fastest_comes_first_named_with_the_rate_that_was_chosen():
    found = compared(gpipe=steady(0.0065, 0.0066, 0.0067), pipedream=steady(0.0081, 0.0083, 0.0085))
    assert names(found) == ["pipedream lr=0.1", "gpipe lr=0.1"]
    (head,) = found.report.heads
    assert head.startswith("pipedream lr=0.1 is the fastest: 0.6")
    assert head.endswith("the ranking holds over 3 seeds.")
    assert not found.notes
    (alone,) = compared(gpipe=steady(0.01)).report.groups
    assert alone.settings == {"method": "gpipe", "lr": "0.1"}


def test_default_target_is_the_loss_of_the_baseline_at_most_steps():
    found = compared(target=None, gpipe=steady(0.005, 0.005), pipedream=steady(0.0025, 0.0025))
    assert found.report.slowdowns[0].target == pytest.approx(1 - 0.005 * (70 - 2), abs=1e-9)  # the mean of 5 steps
    assert found.report.slowdowns[0].baseline == "gpipe lr=0.1"


def test_slowdown_is_the_ratio_of_steps_to_the_baseline():
    found = compared(gpipe=steady(0.016, 0.018, 0.02), pipedream=steady(0.008, 0.009, 0.01))
    ours, theirs = (row_of(found, f"{method} lr=0.1") for method in ("pipedream", "gpipe"))
    ratios = [ours.amounts[STEPS][seed] / steps for seed, steps in theirs.amounts[STEPS].items()]
    slow = ours.over_baseline[STEPS]
    assert slow.middle == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert 1.9 < slow.low <= slow.middle <= slow.high < 2.1


def test_given_target_needs_no_completed_baseline():
    found = compared(gpipe=[DIVERGED], pipedream=steady(0.01))
    assert [*row_of(found, "pipedream lr=0.1").amounts[STEPS].values()] == [pytest.approx(52)]
    assert found.report.slowdowns[0].baseline == "pipedream lr=0.1"
    (head,) = compared(target=None, gpipe=[DIVERGED], pipedream=steady(0.01)).report.heads
    assert head == "No run of gpipe, the baseline, has completed."


def test_baseline_that_does_not_learn_sets_no_target():
    (head,) = compared(target=None, gpipe=steady(-0.001, -0.002), pipedream=steady(0.008, 0.008)).report.heads
    assert head.startswith("gpipe sets no target: ")


def test_runs_are_paired_by_the_seeds_of_the_comparison_if_the_method_has_its_own():
    found = compared(gpipe=steady(0.0065, 0.0066, 0.0067), hogwild=steady(0.0081, 0.0083, 0.0085))
    own = found.outcomes[1]
    seeded = [(planned, replace(run, settings={**run.settings, "method.seed": 1})) for planned, run in own.reported]
    fixed = replace(found, outcomes=[found.outcomes[0], replace(own, reported=seeded)])
    assert fixed.report.heads == found.report.heads


def test_metric_of_evaluations_is_a_target():
    runs = {"gpipe": [evaluated(85, 90), evaluated(86, 90)], "pipedream": [evaluated(70, 80), evaluated(71, 80)]}
    every = distinguished([contender("gpipe", step_s=0.011), contender("pipedream")])
    found = Comparison(Path(), [outcome(c, *runs[c.method]) for c in every], "gpipe", ("top1", 69.0), 2)
    (early,) = found.report.heads
    assert early.startswith("pipedream lr=0.1 is the fastest: 0.5 s, predicted, to top1 69; gpipe lr=0.1 takes 1.10")
    assert "undecided, as gpipe lr=0.1 had reached it at the first value" in early
    (late,) = replace(found, target=("top1", 75.0)).report.heads
    assert late.startswith("gpipe lr=0.1 is the fastest")
    assert "undecided, as" not in late


@pytest.mark.parametrize("metric", ["perplexity", "top5"])
def test_metric_that_searches_are_judged_by_is_shown_beside_the_training_loss(metric):
    every = distinguished([contender("gpipe", metric=metric), contender("pipedream", metric=metric)])
    final = {"loss": 0.5, "top1": 60.0, "perplexity": 7.0, "top5": 81.0}
    outcomes = [outcome(c, *({**run, "final": final} for run in steady(0.01, 0.011))) for c in every]
    for target in (("train_loss", 0.5), None):
        table = text(Comparison(Path(), outcomes, "gpipe", target, 2).report)
        assert f"final {metric}" in table
        assert "final top1" not in table


def test_configuration_that_does_not_fit_is_ranked_last():
    every = distinguished([contender("gpipe", fits=False), contender("pipedream")])
    slopes = {"gpipe": steady(0.0083, 0.0085), "pipedream": steady(0.0065, 0.0066)}
    found = Comparison(Path(), [outcome(c, *slopes[c.method]) for c in every], "gpipe", ("train_loss", 0.5), 2)
    assert names(found) == ["pipedream lr=0.1", "gpipe lr=0.1"]
    assert found.report.heads[0].startswith("pipedream lr=0.1 is the fastest: ")
    assert [note for note in found.notes if note.startswith("gpipe: does not fit")]
    only = replace(found, outcomes=found.outcomes[:1])
    assert only.report.heads == ["No configuration fits into the memory of its devices."]


def test_costs_of_a_step_and_of_the_largest_stage_are_columns():
    costs = Costs(((10, 1.0), (100, 2.0)), 7)
    (only,) = distinguished([contender("gpipe", costs=costs)])
    found = Comparison(Path(), [outcome(only, *steady(0.01))], "gpipe", ("train_loss", 0.5), 1)
    (group,) = found.report.groups
    assert (group.mean(PREDICTED_STAGE), group.mean(PREDICTED_STEP)) == (7, 1900.0)
    # 52 steps, the first 10 of which take half as long
    assert [*row_of(found, group.name).amounts[SECONDS].values()] == [pytest.approx(10 + 42 * 2)]


def test_time_to_the_target_sums_over_phases():
    costs = Costs(((10, 1.0), (30, 2.0)))
    assert [costs.seconds(steps) for steps in (4, 10, 15, 30, math.inf)] == [4, 10, 20, 50, math.inf]


def test_configurations_are_ranked_by_steps_if_a_time_is_unknown():
    every = distinguished([contender("gpipe"), contender("pipedream", costs=Costs(notes=("not predicted: why",)))])
    slopes = {"gpipe": 0.01, "pipedream": 0.02}
    outcomes = [outcome(c, *steady(slopes[c.method])) for c in every]
    found = Comparison(Path(), outcomes, "gpipe", ("train_loss", 0.5), 1)
    assert found.report.heads[0].startswith("pipedream lr=0.1 is the fastest: 27 steps to training loss 0.5; ")
    assert "prediction: not predicted: why" in found.notes


@pytest.mark.parametrize(
    ("tuning", "reported", "note"),
    [
        (Search([(LR,)]), 0, "missing: gpipe: tuning is not finished: 0 of 1 settings were tried"),
        (
            Search([(LR,)], losses={("optimizer.lr=0.3",): 0.5, ("optimizer.lr=1",): math.inf}),
            0,
            "missing: gpipe: tuning is not finished: 2 of 3 settings were tried; the best so far is optimizer.lr=0.3",
        ),
        (Search(), 0, "missing: gpipe: every setting that was tried diverged or failed"),
        (Search(best=(LR,)), 2, "missing: gpipe: 1 of 3 seeds have not run"),
    ],
)
def test_notes_say_what_is_missing(tuning, reported, note):
    (only,) = contenders("gpipe")
    found = Comparison(Path("out"), [outcome(only, *steady(0.01) * reported, tuning=tuning)], "gpipe", None, 3)
    line, *how = found.notes
    assert line == note
    assert how == (["the same command with -o out goes on"] if tuning.missing or tuning.best else [])


def test_files_hold_the_report_and_all_runs(tmp_path):
    found = compared(tmp_path, gpipe=steady(0.0065, 0.0066))
    found.write()
    assert {each.name for each in tmp_path.iterdir()} == {*FILES, "state.json"}
    assert json.loads((tmp_path / "comparison.json").read_text())["heads"] == found.report.heads
    assert json.loads((tmp_path / "state.json").read_text()) == {"missing": ["gpipe: 1 of 3 seeds have not run"]}
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [(row["configuration"], row["purpose"], row["tuned"], row["seed"]) for row in rows] == [
        ("gpipe", "reported", LR, "0"), ("gpipe", "reported", LR, "1"),
    ]  # fmt: skip


def test_report_of_no_runs_is_written(tmp_path):
    compared(tmp_path, gpipe=[]).write()
    assert (tmp_path / "comparison.md").read_text().startswith("No run of gpipe, the baseline, has completed.")
