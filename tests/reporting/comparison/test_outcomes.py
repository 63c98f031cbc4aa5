"""The sentence and the numbers of a comparison, by hand."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.made_up_runs import DIVERGED, FAILED, contender, contenders, evaluated, falling

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.comparison import page
from pipetrain.reporting.comparison.contenders import distinguished
from pipetrain.reporting.comparison.costs import Costs
from pipetrain.reporting.comparison.halving import Search
from pipetrain.reporting.comparison.outcomes import Comparison, Outcome, duration
from pipetrain.reporting.comparison.runs import PlannedRun
from pipetrain.reporting.sweep.compared_run import ComparedRun

LR = "optimizer.lr=0.1"
BOUND = ": undecided, as gpipe had reached it at the first value, so the steps are an upper bound."


def outcome(contender, *runs):
    """Of a contender, with a run of each seed."""
    reported = []
    for seed, facts in enumerate(runs):
        planned = PlannedRun(contender, (LR,), seed, contender.steps, tunes=False)
        reported.append(
            (planned, ComparedRun(Path(planned.name), settings={"seed": seed}, numbers={"steps": 100}, **facts))
        )
    return Outcome(contender, Search(best=(LR,)), [], reported)


def compared(tmp_path=Path(), target=("train_loss", 0.5), **runs):
    every = contenders(*runs)
    return Comparison(tmp_path, [outcome(c, *runs[c.method]) for c in every], every[0].method, target, 3)


def steady(*slopes):
    return [falling(slope) for slope in slopes]


def test_ranking_that_no_seed_contradicts_holds():
    found = compared(gpipe=steady(0.0065, 0.0066, 0.0067), pipedream=steady(0.0081, 0.0083, 0.0085))
    assert [each.contender.method for each in found.ranked] == ["pipedream", "gpipe"]
    assert found.head.startswith("pipedream is the fastest: 0.6")
    assert "gpipe takes 1.2" in found.head
    assert found.head.endswith("times as long: the ranking holds over 3 seeds.")


def test_contradicted_ranking_is_undecided_and_says_how_many():
    found = compared(gpipe=steady(0.0070, 0.0080, 0.0075), pipedream=steady(0.0081, 0.0076, 0.0078))
    assert "undecided after 3 seeds, about " in found.head
    assert found.head.endswith(" more would decide at even odds.")


def test_contender_that_fails_the_target_once_is_ranked_behind():
    found = compared(gpipe=steady(0.0065, 0.0066, 0.0067), pipedream=[*steady(0.02, 0.02), DIVERGED])
    assert found.ranked[0].contender.method == "gpipe"
    assert "pipedream has reached it with 2 of 3 seeds: undecided after 3 seeds" in found.head
    assert found.lost == ["pipedream, seed 2: diverged: the loss of step 7 is nan"]


def test_target_that_none_reaches_is_said():
    assert compared(gpipe=steady(0.001)).head == "No configuration has reached training loss 0.5."


def test_default_target_is_the_baselines_loss_at_most_steps():
    found = compared(target=None, gpipe=steady(0.005, 0.005), pipedream=steady(0.0025, 0.0025))
    assert found.slowdown.target == pytest.approx(1 - 0.005 * (70 - 2), abs=1e-9)  # the mean of 5 steps
    assert "pipedream" not in found.head.partition(";")[0]
    assert found.over_baseline(found.outcomes[0]) is None


def test_slowdown_is_the_ratio_of_steps_to_the_baseline():
    found = compared(gpipe=steady(0.016, 0.018, 0.02), pipedream=steady(0.008, 0.009, 0.01))
    slow = found.over_baseline(found.outcomes[1])
    steps = [found.steps(each) for each in found.outcomes]
    assert slow.middle == pytest.approx(math.prod(steps[1][s] / steps[0][s] for s in steps[0]) ** (1 / 3))
    assert 1.9 < slow.low <= slow.middle <= slow.high < 2.1


def test_slowdown_needs_a_completed_baseline_but_steps_do_not():
    found = compared(gpipe=[DIVERGED], pipedream=steady(0.01))
    assert found.over_baseline(found.outcomes[1]) is None
    assert list(found.steps(found.outcomes[1]).values()) == [pytest.approx(52)]


def test_ranking_is_by_the_seeds_that_all_have_run(tmp_path):
    found = compared(tmp_path, gpipe=steady(0.0081, 0.0083, 0.002), pipedream=steady(0.0065, 0.0066))
    assert found.head.startswith("gpipe is the fastest: 0.6")
    assert "pipedream takes 1.2" in found.head
    assert "over 2 seeds" in found.head
    assert (
        "ranked over the 2 seeds that all have run, and the first against each other over all that both have run"
        in page.notes(found)
    )


def test_baseline_with_several_numbers_of_stages_is_named_whole():
    words = [("gpipe", "partition.stages=2"), ("gpipe", "partition.stages=4"), ("pipedream", "partition.stages=2")]
    first, *others = distinguished([contender(*each) for each in words])
    apart = [outcome(first, DIVERGED), *(outcome(each, *steady(0.0065)) for each in others)]
    found = Comparison(Path(), apart, "gpipe", None, 1)
    assert found.head == "No run of gpipe stages=2, which the others are compared with, has completed."
    found = replace(found, outcomes=[outcome(first, *steady(0.0065)), *apart[1:]])
    assert "  over gpipe stages=2  " in page.text(found)
    assert page.as_json(found)["baseline"] == "gpipe stages=2"


def test_configurations_that_were_left_out_are_missing():
    found = replace(compared(gpipe=steady(0.0065, 0.0066, 0.0067)), left_out=["method=pipedream: not compared: why"])
    assert "missing: method=pipedream: not compared: why" in page.notes(found)


def test_runs_are_paired_by_the_seeds_of_the_comparison_if_the_method_has_its_own():
    found = compared(gpipe=steady(0.0065, 0.0066, 0.0067), hogwild=steady(0.0081, 0.0083, 0.0085))
    own = found.outcomes[1]
    seeded = [(planned, replace(run, settings={**run.settings, "method.seed": 1})) for planned, run in own.reported]
    fixed = replace(found, outcomes=[found.outcomes[0], replace(own, reported=seeded)])
    assert len(fixed.common_seeds) == 3
    assert fixed.head == found.head
    assert fixed.over_baseline(fixed.outcomes[1]) == found.over_baseline(own)


def test_a_margin_that_would_read_as_none_has_more_digits():
    found = compared(gpipe=steady(0.0065, 0.0066, 0.0067), pipedream=steady(0.00651, 0.00661, 0.00671))
    margin = re.search(r"gpipe takes (\S+) \((\S+) to (\S+)\) times as long: the ranking holds", found.head)
    middle, low, high = map(float, margin.groups())
    assert 1 < low <= middle <= high < 1.004


def test_two_that_lead_are_compared_by_all_seeds_that_both_have():
    slow, fast = steady(0.0065, 0.0066, 0.0067, 0.0066), steady(0.0081, 0.0083, 0.0082, 0.0084)
    found = compared(gpipe=slow, pipedream=fast, stale=steady(0.005))
    assert found.head.endswith("the ranking holds over 4 seeds.")
    reversed_ = compared(gpipe=[*steady(0.0067), *fast], pipedream=[*steady(0.0066), *slow], stale=steady(0.005))
    assert reversed_.head.startswith("gpipe is the fastest")
    late = compared(gpipe=[*steady(0.0066), *fast], pipedream=[*steady(0.0067), *slow], stale=steady(0.005))
    assert late.head.startswith("gpipe is the fastest")
    assert late.ranked[0].contender.method == "gpipe"


def test_configuration_with_one_seed_does_not_hide_the_fastest():
    found = compared(
        stale=steady(0.006),
        gpipe=steady(0.0082, 0.0080, 0.0081),
        pipedream=steady(0.0081, 0.0070, 0.0071),
        naive_async=steady(0.0080, 0.0100, 0.0101),
    )
    assert found.ranked[0].contender.method == "naive_async"
    assert found.head.startswith("naive_async is the fastest")


def test_common_seed_that_none_reaches_leaves_the_others_to_decide():
    slow, fast = steady(0.001, 0.0065, 0.0066), steady(0.001, 0.0081, 0.0083)
    found = compared(gpipe=slow, pipedream=fast, stale=steady(0.001))
    assert found.head.startswith("pipedream is the fastest")
    assert "gpipe takes" in found.head or "gpipe has reached it" in found.head
    assert "stale" not in found.head
    assert compared(gpipe=steady(0.001), stale=steady(0.001)).head == "No configuration has reached training loss 0.5."


def test_baseline_that_does_not_learn_sets_no_target():
    found = compared(target=None, gpipe=steady(-0.001, -0.002), pipedream=steady(0.008, 0.008))
    assert found.head == (
        "The training loss of gpipe has not fallen after 70% of its steps, so it sets no target; --target or another "
        "--baseline does."
    )


def test_training_loss_that_all_have_at_once_is_undecided():
    every = distinguished([contender("gpipe", step_s=0.011), contender("pipedream")])
    runs = [outcome(c, *steady(0.001, 0.0011)) for c in every]
    found = Comparison(Path(), runs, "gpipe", ("train_loss", 0.999), 2)
    assert found.head.endswith(BOUND)


def reseeded(outcome, *seeds):
    reported = [(replace(each, seed=seed), run) for (each, run), seed in zip(outcome.reported, seeds, strict=True)]
    return replace(outcome, reported=reported)


def test_ranking_waits_for_a_seed_that_two_have_run():
    found = compared(gpipe=steady(0.0083), pipedream=steady(0.0065))
    apart = replace(found, outcomes=[reseeded(found.outcomes[0], 7), found.outcomes[1]])
    assert apart.head == "No seed has run with two configurations, so they cannot be ranked yet."


def test_configurations_with_a_common_seed_are_ranked_without_the_others():
    found = compared(stale=steady(0.009), gpipe=steady(0.0065, 0.0066), pipedream=steady(0.0081))
    apart = replace(found, outcomes=[reseeded(found.outcomes[0], 7), *found.outcomes[1:]])
    assert [each.contender.method for each in apart.ranked] == ["pipedream", "gpipe", "stale"]
    assert apart.head.startswith("pipedream is the fastest: 0.6")
    assert "; gpipe takes 1.2" in apart.head
    assert apart.head.endswith(". Not ranked, because no seed has results for all of them: stale.")
    assert any(note.startswith("ranked over the 1 seed that all ranked ones have run") for note in page.notes(apart))
    slow = compared(stale=steady(0.009), gpipe=steady(0.001), pipedream=steady(0.001))
    apart = replace(slow, outcomes=[reseeded(slow.outcomes[0], 7), *slow.outcomes[1:]])
    assert apart.head.startswith("No ranked configuration has reached training loss 0.5. Not ranked, ")


def test_single_configuration_is_not_compared_with_others():
    head = compared(gpipe=steady(0.0081, 0.0083)).head
    assert re.fullmatch(r"gpipe is the fastest: 0\.\d+ s, predicted, to training loss 0\.5\.", head)


def test_target_reached_by_the_first_evaluation_is_undecided():
    runs = {"gpipe": [evaluated(85, 90), evaluated(86, 90)], "pipedream": [evaluated(70, 80), evaluated(71, 80)]}
    every = [contender("gpipe", step_s=0.011), contender("pipedream")]
    found = Comparison(Path(), [outcome(c, *runs[c.method]) for c in distinguished(every)], "gpipe", ("top1", 69.0), 2)
    assert found.head.startswith(
        "pipedream is the fastest: 0.5 s, predicted, to top1 69; gpipe takes 1.10 times as long:"
    )
    assert found.head.endswith(BOUND)
    later = replace(found, target=("top1", 75.0))
    assert "gpipe takes" not in later.head
    assert "pipedream takes" in later.head
    assert "undecided, as" not in later.head


def test_upper_bound_of_any_other_makes_the_ranking_undecided():
    runs = {"pipedream": (70, 90), "stale": (60, 90), "gpipe": (85, 90)}
    every = [contender("pipedream"), contender("stale", step_s=0.011), contender("gpipe", step_s=0.03)]
    outcomes = [outcome(c, *[evaluated(*runs[c.method])] * 2) for c in distinguished(every)]
    found = Comparison(Path(), outcomes, "gpipe", ("top1", 80.0), 2)
    assert [each.contender.method for each in found.ranked] == ["pipedream", "stale", "gpipe"]
    assert re.search("; stale takes [0-9.]+ times as long: undecided, as gpipe had reached it", found.head)


def test_configuration_that_reached_the_target_with_a_seed_of_its_own_is_named():
    head = compared(gpipe=steady(0.001), stale=steady(0.001, 0.0081)).head
    assert head == (
        "No configuration has reached training loss 0.5 with a seed that the others have run, too; stale did with "
        "another one."
    )


def test_final_value_is_that_of_runs_that_completed(tmp_path):
    lost = {**evaluated(85, 90), "status": "diverged", "reason": "diverged: the loss of step 7 is nan"}
    runs = {"gpipe": [evaluated(70, 80), lost, evaluated(70, 81)], "stale": [lost, lost, lost]}
    every = distinguished([contender("gpipe"), contender("stale")])
    found = Comparison(tmp_path, [outcome(c, *runs[c.method]) for c in every], "gpipe", ("top1", 75.0), 3)
    finals = [each.finals("top1") for each in found.outcomes]
    assert [sorted(values.values()) for values in finals] == [[80.0, 81.0], []]


def test_note_says_that_seeds_differ_though_all_have_as_many():
    found = compared(gpipe=steady(0.0065, 0.0066), pipedream=steady(0.0081, 0.0082))
    apart = replace(found, outcomes=[found.outcomes[0], reseeded(found.outcomes[1], 0, 2)])
    assert any(note.startswith("ranked over the 1 seed that all have run") for note in page.notes(apart))


def test_configuration_that_does_not_fit_is_ranked_last():
    every = distinguished([contender("gpipe", fits=False), contender("pipedream")])
    slopes = {"gpipe": steady(0.0083, 0.0085), "pipedream": steady(0.0065, 0.0066)}
    found = Comparison(Path(), [outcome(c, *slopes[c.method]) for c in every], "gpipe", ("train_loss", 0.5), 2)
    assert [each.contender.method for each in found.ranked] == ["pipedream", "gpipe"]
    assert found.head.startswith("pipedream is the fastest: ")
    assert "gpipe: does not fit into the memory of the devices, so it is ranked last" in page.notes(found)
    only = replace(found, outcomes=found.outcomes[:1])
    assert only.head == "No configuration fits into the memory of its devices."


def test_time_to_the_target_sums_over_phases():
    costs = Costs(((10, 1.0), (30, 2.0)))
    assert [costs.seconds(steps) for steps in (4, 10, 15, 30, math.inf)] == [4, 10, 20, 50, math.inf]
    assert Costs().seconds(3) is None


def test_contenders_are_ranked_by_steps_if_a_time_is_unknown():
    found = compared(gpipe=steady(0.01), pipedream=steady(0.02))
    unknown = [
        Outcome(c, each.tuning, [], each.reported)
        for each, c in zip(found.outcomes, [found.outcomes[0].contender, contenders("pipedream")[0]], strict=True)
    ]
    object.__setattr__(unknown[1].contender, "costs", Costs(notes=("not predicted: for a reason",)))
    found = Comparison(Path(), unknown, "gpipe", ("train_loss", 0.5), 1)
    assert not found.timed
    assert found.head.startswith("pipedream is the fastest: 27 steps to training loss 0.5; gpipe takes 1.9")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1234, "0.123 s"), (99.9, "99.9 s"), (600, "10.0 min"), (7200, "2.0 h")]
)
def test_duration_is_in_a_suitable_unit(seconds, text):
    assert duration(seconds) == text


def test_files_hold_the_sentence_the_table_and_the_figure(tmp_path):
    found = compared(tmp_path, gpipe=steady(0.0065, 0.0066), pipedream=[*steady(0.0083), DIVERGED])
    page.write(found)
    assert {each.name for each in tmp_path.iterdir()} == set(page.FILES)
    text = (tmp_path / "comparison.txt").read_text()
    assert text.partition("\n\n")[0].split() == found.head.split()
    (row,) = [line for line in text.splitlines() if line.startswith("pipedream") and "lr=0.1" in line]
    assert "reached by 1 of 2" in row
    assert row.endswith("2, 1 lost")
    html = (tmp_path / "comparison.html").read_text()
    assert html.count("<svg") == 1
    assert found.head in html
    assert "<th>tried</th><th>by</th>" in html
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"


def test_control_characters_of_a_stored_reason_are_not_shown(tmp_path):
    text = page.text(compared(tmp_path, gpipe=[*steady(0.0065), FAILED | {"reason": "x\x1b]0;y\x07"}]))
    assert "x?]0;y?" in text
    assert text.replace("\n", "").isprintable()


def test_stored_contenders_are_read_back(tmp_path):
    found = compared(tmp_path, gpipe=steady(0.0065), pipedream=steady(0.0083))
    assert page.stored(tmp_path) == ([], {})
    page.write(found)
    assert page.stored(tmp_path) == ([each.contender for each in found.outcomes], {})
    failed = compared(tmp_path, gpipe=[*steady(0.0065), FAILED])
    page.write(failed)
    (name,) = (planned.name for planned, run in failed.outcomes[0].reported if run.status == "failed")
    assert page.stored(tmp_path)[1] == {name: ComparedRun(tmp_path / "runs" / name, **FAILED)}


@pytest.mark.parametrize("content", ["{", "[]", '{"contenders": [{"words": 3}]}'])
def test_damaged_file_of_contenders_is_refused(tmp_path, content):
    (tmp_path / "comparison.json").write_text(content)
    with pytest.raises(ConfigError, match="damaged"):
        page.stored(tmp_path)


@pytest.mark.parametrize("word", ["dataset._target_=torch.load", "partition=file", "partition.stages=${oc.env:HOME}"])
def test_planned_cut_that_is_read_back_sets_no_more_than_the_cut(tmp_path, word):
    found = compared(tmp_path, gpipe=steady(0.0065))
    page.write(found)
    file = tmp_path / "comparison.json"
    content = json.loads(file.read_text())
    content["contenders"][0]["cut"] = ["partition=explicit", word]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        page.stored(tmp_path)
    assert f"{file}: damaged: cut={word}: sets no cut of the model; move it away" in str(caught.value)


def test_numbers_of_json_and_csv_agree(tmp_path):
    page.write(found := compared(tmp_path, gpipe=steady(0.0065, 0.0066), pipedream=steady(0.0083, 0.0084)))
    rows = json.loads((tmp_path / "comparison.json").read_text())["configurations"]
    assert [row["configuration"] for row in rows] == [each.contender.name for each in found.ranked]
    lines = (tmp_path / "comparison.csv").read_text().splitlines()
    assert lines[1].split(",")[: len(rows[0])] == [str("" if v is None else v) for v in rows[0].values()]


def test_contenders_with_equal_results_are_the_fastest_together():
    found = compared(pipedream=steady(0.0083), stale=steady(0.0083), gpipe=steady(0.0065))
    assert found.head.startswith(
        "pipedream and stale are the fastest: 0.622 s, predicted, to training loss 0.5; gpipe takes"
    )


def test_trials_on_the_page_say_whether_they_failed_or_diverged():
    (only,) = contenders("gpipe")
    trials = [
        (PlannedRun(only, (f"optimizer.lr={rate}",), 1000, 100, tunes=True), ComparedRun(Path(), **facts))
        for rate, facts in ((0.1, falling(0.002)), (0.2, DIVERGED), (0.3, FAILED))
    ]
    losses = {(planned.candidate, 100): only.loss_of(run) for planned, run in trials}
    found = Comparison(Path(), [Outcome(only, Search(losses=losses), trials, [])], "gpipe", None, 1)
    cells = re.findall(r"<td>(0\.8|failed|diverged)</td>", page.page(found, ""))
    assert cells == ["0.8", "diverged", "failed"]


@pytest.mark.parametrize(("slopes", "effect"), [((0.002, 0.002), "has no effect"), ((0.002, 0.003), "is not tuned")])
def test_setting_has_no_effect_only_if_training_losses_are_the_same(slopes, effect):
    (only,) = contenders("gpipe")
    candidates = [(f"optimizer.lr={rate}",) for rate in (0.1, 0.2)]
    runs = [ComparedRun(Path(), **{**falling(slope), "final": {"loss": 0.0}}) for slope in slopes]
    planned = [PlannedRun(only, each, 1000, 100, tunes=True) for each in candidates]
    trials = list(zip(planned, runs, strict=True))
    tuning = Search(best=candidates[0], losses={(each, 100): 0.0 for each in candidates})
    found = Comparison(Path(), [Outcome(only, tuning, trials, [])], "gpipe", None, 1)
    (line,) = [note for note in page.notes(found) if "all candidates ended with the same loss" in note]
    assert effect in line
