"""The verdicts that runs give on claims."""

import json
import shlex
import shutil

import pytest

from papers.claims import Apart, ContrastClaim, MeanRatioClaim, RankingClaim, RatioTrendClaim, Reaches
from papers.difference import Relation
from papers.evidence import measured_rows
from papers.judgement import judge
from papers.kept_runs import rows_in
from papers.pages import PAPERS
from papers.paper import PublishedTable
from papers.results import read_results
from papers.targets import ReproductionTarget
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.terminal.text_table import csv_table

VGG, VGG_2BW, ALEXNET, RESNET = "table4_vgg16", "table4_vgg16_2bw", "table4_alexnet", "table6_resnet101"
BETTER, LIKE, WORSE, FAILS = Relation.BETTER, Relation.LIKE, Relation.WORSE, Relation.FAILS
SEEN, NOT_SEEN = "seen at small scale", "not seen at small scale"
IN_PART = "seen in part at small scale, parts uncorrected"
UNTESTED, UNDECIDED = "not tested here", "undecided"
AT_80 = [79.9, 80.0, 80.1]
LIKE_80 = [80.0, 80.1, 79.9]


def around(mean, spread=0.1):
    """Accuracies of three seeds."""
    return [mean - spread, mean, mean + spread]


def of_top1(found, best):
    """Runs with these accuracies, whose best evaluation is higher by `best`; None if all diverged."""
    if found is None:  # what they had before they diverged
        return [{"seed": seed, "status": "diverged", "top1": 90.0, "best_top1": 90.0} for seed in range(3)]
    return [
        {"seed": seed, "status": "completed", "top1": top1, "loss": 100 - top1, "best_top1": top1 + best}
        for seed, top1 in enumerate(found)
    ]


def of_means(means, runs):
    """Equal runs."""
    return [{"status": "completed", "top1": 50.0, **means}] * runs


def write(folder, name, groups, *, scale="small", best=0.0, runs=1, metric="top1"):
    """Results of an experiment: name of a group -> top1 of its runs, the means of equal runs, or the runs."""
    rows = [
        {"name": group, "seed": None, **run}
        for group, found in groups.items()
        for run in (
            of_means(found, runs) if isinstance(found, dict)
            else found if found and isinstance(found[0], dict)
            else of_top1(found, best)
        )
    ]  # fmt: skip
    command = f"pipetrain run --multirun experiment=pipeoptim/{name} dataset=fashion_mnist_mini ~dataset.size"
    made = {"command": f"{command} resume=auto", "runs": 3, "wall_s": 60.0, "made_with": {"cores": 2, "cpu": "some"}}
    path = folder / "pipeoptim" / name / scale
    path.mkdir(parents=True)
    (path / "runs.csv").write_text(csv_table(rows))
    (path / "made.json").write_text(json.dumps(made | {"metric": metric}))


def order(relation, *others, experiment=VGG, first="pipeoptim", **more):
    return RankingClaim(experiment, first, relation, others, **more)


def results(folder):
    return read_results(folder, "pipeoptim")


def judged(folder, *rules, **more):
    return judge(rules, results(folder), **more)


def measured(folder, tables=None):
    """The rows of what was measured."""
    return list(measured_rows(PAPERS["pipeoptim"], tables or {}, results(folder)))


@pytest.mark.parametrize(
    ("ours", "other", "better", "like", "worse"),
    [
        (around(80.0), [79.0, 79.11, 79.2], SEEN, SEEN, NOT_SEEN),
        (around(79.0), [80.0, 80.11, 80.2], NOT_SEEN, SEEN, SEEN),
        (around(75.0), [80.0, 80.11, 80.2], NOT_SEEN, NOT_SEEN, SEEN),
        ([70.0, 80.0, 90.0], [80.0, 80.0, 80.5], UNDECIDED, UNDECIDED, UNDECIDED),
        (around(80.0), None, SEEN, SEEN, NOT_SEEN),
        (None, around(20.0), NOT_SEEN, NOT_SEEN, SEEN),
        (None, None, UNTESTED, UNTESTED, UNTESTED),
    ],
)
def test_verdict_of_trained_models_names_its_scale(tmp_path, ours, other, better, like, worse):
    write(tmp_path, VGG, {"pipeoptim": ours, "gpipe": other})
    found = [judged(tmp_path, order(relation, "gpipe")).verdict for relation in (BETTER, LIKE, WORSE)]
    assert found == [better, like, worse]


ONE_OF_TWO = {
    VGG: {"pipeoptim": around(80.0, 0.2), "pipedream": [69.9, 70.0, 70.2]},
    VGG_2BW: {"pipedream_2bw": [89.9, 90.0, 90.2]},
}
CLEAR = {VGG: {"pipeoptim": around(80.0), "gpipe": around(70.0, 0.2)}}
ALIKE = {VGG: {"pipeoptim": AT_80, "gpipe": LIKE_80, "pipedream": [80.1, 79.9, 80.0]}}
MIXED = {VGG: {"pipeoptim": around(80.0), "gpipe": around(90, 0.2), "pipedream": around(70, 0.2), "lwp": [60, 80, 99]}}
BOTH = order(BETTER, "pipedream", "pipedream_2bw")
DECIDED, OPEN = order(BETTER, "gpipe", "pipedream"), order(BETTER, "pipedream", "lwp")
ELSEWHERE = order(BETTER, "pipedream", experiment=ALEXNET)


def plain_at(mean):
    """One more experiment, whose method without a remedy has this accuracy."""
    return {VGG: {"pipeoptim": AT_80, "gpipe": LIKE_80}, ALEXNET: {"naive_async": mean and around(mean)}}


def reaching(least):
    return order(BETTER, "gpipe", controls=(Reaches(VGG, "gpipe", "top1", least),))


LOSES = order(LIKE, "gpipe", controls=(Apart(ALEXNET, "naive_async", VGG, "gpipe", "top1", points=1.0),))


@pytest.mark.parametrize(
    ("experiments", "rules", "superlative", "verdict", "why"),
    [
        (ONE_OF_TWO, [BOTH], False, IN_PART, "gain 9.97, 95 % 9.82 to 10.11, paired, 3 seeds"),
        (ONE_OF_TWO, [BOTH], False, IN_PART, "gain -10.03, 95 % -10.18 to -9.89, paired, 3 seeds"),
        ({VGG: ONE_OF_TWO[VGG]}, [BOTH], True, UNDECIDED, "not tested: table4_vgg16, small (fashion_mnist_mini): pip"),
        (
            {VGG: {"pipeoptim": around(80.0)}, ALEXNET: {"pipeoptim": around(70.0, 0.2)}},
            [order(BETTER, "pipeoptim", against=ALEXNET)], False,
            SEEN, "70.00 ± 0.20 (3 runs) of table4_alexnet; gain 10.00",
        ),
        (CLEAR, [order(BETTER, "gpipe", experiment=name) for name in (VGG, "x")], False,
         f"{SEEN}, 1 of 2 experiments", "not run: x"),
        (CLEAR, [reaching(60)], False, SEEN, ""),
        (CLEAR, [reaching(90)], False, UNTESTED, "gpipe 70.00 ± 0.20 (3 runs) does not reach a final top1 of 90"),
        (plain_at(78.0), [LOSES], False, SEEN, ""),
        (plain_at(None), [LOSES], False, SEEN, ""),
        (plain_at(79.9), [LOSES], False, UNTESTED, ""),
        ({VGG: {"pipeoptim": None, "gpipe": None}}, [order(WORSE, "gpipe")], False, UNTESTED, "neither"),
        (ALIKE, [order(LIKE, "gpipe")], False, UNTESTED, "no other method is worse either"),
        ({**ALIKE, VGG_2BW: {"pipedream_2bw": [69.9, 70.0, 70.2]}}, [order(LIKE, "gpipe")], False, SEEN, ""),
        (MIXED, [DECIDED], False, IN_PART, ""),
        (MIXED, [DECIDED], True, NOT_SEEN, ""),
        (MIXED, [OPEN], False, IN_PART, ""),
        (MIXED, [OPEN], True, UNDECIDED, ""),
        (MIXED, [OPEN, ELSEWHERE], True, UNDECIDED, ""),
    ],
)  # fmt: skip
def test_verdict_follows_from_orders_controls_and_what_was_run(tmp_path, experiments, rules, superlative, verdict, why):
    for name, groups in experiments.items():
        write(tmp_path, name, groups)
    found = judged(tmp_path, *rules, superlative=superlative)
    assert found.verdict == verdict
    assert any(why in each for each in found.why)
    assert found.tested is (verdict != UNTESTED)


def test_best_evaluations_are_compared_if_paper_prints_them(tmp_path):
    write(tmp_path, VGG, CLEAR[VGG], best=2.0)
    for best, numbers in ((True, "best top1: pipeoptim 82.00"), (False, "final top1: pipeoptim 80.00")):
        assert numbers in judged(tmp_path, order(BETTER, "gpipe"), best=best).why[0]


@pytest.mark.parametrize(("scale", "word"), [("small", UNTESTED), ("full", "seen at full scale")])
def test_what_one_scale_is_asked_for_is_not_asked_of_the_other(tmp_path, scale, word):
    write(tmp_path, VGG, CLEAR[VGG], scale=scale)
    rule = order(BETTER, "gpipe", controls=(Reaches(VGG, "gpipe", "top1", 90, small=True),))
    assert judged(tmp_path, rule).verdict == word
    write(tmp_path, RESNET, {"a": {"stage_bytes": 7.0}, "b": {"stage_bytes": 9.0}}, scale=scale)
    only_full = order(BETTER, "b", experiment=RESNET, first="a", metric="stage_bytes", full=True)
    assert judged(tmp_path, only_full).verdict == word


@pytest.mark.parametrize(
    ("delayed", "word"), [([49.0, 49.3, 48.9], SEEN), ([30.0, 30.2, 29.8], NOT_SEEN), ([35.0, 49.0, 41.0], UNDECIDED)]
)
def test_costs_of_a_change_are_compared_seed_by_seed(tmp_path, delayed, word):
    write(tmp_path, VGG, {"delayed": around(40.0), "plain": around(50.0)})
    write(tmp_path, ALEXNET, {"delayed": delayed, "plain": around(50.0)})
    claim = ContrastClaim("loss", *((name, "delayed", "plain") for name in (VGG, ALEXNET)))
    found = judged(tmp_path, claim)
    assert found.verdict == word
    assert "delayed over plain in table4_vgg16 1.200" in found.why[0]
    shutil.rmtree(tmp_path / "pipeoptim" / ALEXNET)
    assert judged(tmp_path, claim) is None


def up_to_date(folder, name, scale, **more):
    """Gives the runs the command that their preset has today, and more."""
    path = folder / "pipeoptim" / name / scale / "made.json"
    words = ReproductionTarget(f"pipeoptim/{name}", scale).words(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": shlex.join(["pipetrain", *words]), **more}))


@pytest.mark.parametrize(("scale", "why"), [("full", "only the small scale of"), ("small", "are from before")])
def test_runs_of_other_scale_or_settings_are_not_compared(tmp_path, scale, why):
    write(tmp_path, VGG, CLEAR[VGG], scale=scale)
    write(tmp_path, ALEXNET, {"pipeoptim": around(70.0), "gpipe": around(70.0, 0.2)})
    up_to_date(tmp_path, VGG, scale)
    control = Apart(ALEXNET, "pipeoptim", VGG, "gpipe", "top1", points=-1.0)
    for rule in (
        order(BETTER, "gpipe", against=ALEXNET),
        order(BETTER, "gpipe", controls=(control,)),
        ContrastClaim("loss", *((name, "pipeoptim", "gpipe") for name in (ALEXNET, VGG))),
    ):
        found = judged(tmp_path, rule)
        assert found.verdict == UNTESTED
        assert why in found.why[0]


def test_experiment_without_evaluation_shows_throughput_only(tmp_path):
    rate = {"status": "completed", "samples_per_second": 6.4014}
    write(tmp_path, "table5_gnmt8", {"pipeoptim": [rate]}, metric=None)
    assert judged(tmp_path, order(LIKE, "pipeoptim", experiment="table5_gnmt8")) is None
    (row,) = measured(tmp_path)
    assert [row[name] for name in ("name", "metric", "value", "samples/s", "idle", "runs")] == [
        "pipeoptim", "", "", "6.4", "", "1 completed",
    ]  # fmt: skip


def test_runs_that_failed_count_as_having_missed_the_target(tmp_path):
    learned = {"status": "completed", "target_epochs": 8, "first_loss": 7.0, "loss": 4.5, "seed": 0}
    lost = {"status": "completed", "seed": 2, "first_loss": 7.0, "loss": 6.9}
    write(tmp_path, "table5_gnmt8", {"pipedream": [learned, {"status": "diverged", "seed": 1}, lost]}, metric=None)
    (row,) = measured(tmp_path)
    assert row["to target, epochs"] == "8.00 (1 of 3)"
    assert row["runs"] == "1 completed, 1 diverged, 1 learned nothing"


@pytest.mark.parametrize(
    ("first", "other", "column", "word"),
    [
        ("a", "b", "target_epochs", SEEN),
        ("b", "a", "target_epochs", NOT_SEEN),
        ("a", "b", "predicted_target_s", UNTESTED),
    ],
)
def test_missed_target_ranks_last_and_lost_column_is_unknown(tmp_path, first, other, column, word):
    write(tmp_path, VGG, {"a": {"target_epochs": 3}, "b": {}}, runs=2)
    assert judged(tmp_path, order(BETTER, other, first=first, metric=column)).verdict == word


def with_losses(folder, group, losses):
    """Gives the runs of a group their final losses after a first training loss of 2.3."""
    path = folder / "pipeoptim" / VGG / "small" / "runs.csv"
    rows = rows_in(path)
    changed = [row for row in rows if row["name"] == group]
    for row, loss in zip(changed, losses, strict=True):
        row |= {"loss": loss, "first_loss": 2.3}
    path.write_text(csv_table(rows))


def test_runs_that_learned_nothing_where_others_did_are_counted_apart(tmp_path):
    others = {"gpipe": [80.0, 80.1, 80.3], "pipedream": [70.0, 70.1, 70.3]}
    write(tmp_path, VGG, {"pipeoptim": [80.0, 10.0, 80.2], **others})
    with_losses(tmp_path, "pipeoptim", [0.5, 2.3, 0.5])
    found = results(tmp_path)[VGG].groups[0]
    assert (found.completed, found.ended) == (2, {"completed": 2, "learned nothing": 1})
    assert (found.means["top1"], found.lost) == (pytest.approx(80.1), {1})
    like = judged(tmp_path, order(LIKE, "gpipe"))
    assert like.verdict == UNDECIDED
    assert "pipeoptim 80.10 ± 0.14 (2 runs, 1 learned nothing)" in like.why[0]


def test_runs_that_learned_nothing_are_not_apart_if_none_learned(tmp_path):
    write(tmp_path, VGG, {"pipeoptim": around(10.0), "gpipe": around(80.0)})
    with_losses(tmp_path, "pipeoptim", [2.3, 2.3, 2.3])
    assert results(tmp_path)[VGG].groups[0].ended == {"completed": 3}
    assert judged(tmp_path, order(FAILS, "gpipe")).verdict == SEEN


@pytest.mark.parametrize(("factor", "word"), [(1.2, SEEN), (1.5, IN_PART)])
def test_gain_below_the_factor_of_the_paper_is_seen_in_part(tmp_path, factor, word):
    rates = {"a": {"samples_per_second": 9.1}, "b": {"samples_per_second": 7.0}}
    write(tmp_path, RESNET, rates, runs=3)
    rule = order(BETTER, "b", experiment=RESNET, first="a", metric="samples_per_second", factor=factor)
    found = judged(tmp_path, rule)
    assert found.verdict == word
    assert f"1.30X of it (the paper: {factor}X)" in found.why[1]


def test_one_network_timing_is_no_test_but_several_have_interval(tmp_path):
    names = (VGG, ALEXNET, RESNET)
    for name, gain in zip(names, (1.38, 1.34, 1.27), strict=True):
        write(tmp_path, name, {"a": {"samples_per_second": gain}, "b": {"samples_per_second": 1.0}})
    single = judged(tmp_path, order(BETTER, "b", first="a", metric="samples_per_second"))
    assert single.verdict == UNTESTED
    assert "one timing" in single.why[0]
    for relation, factor, verdict, why in (
        (BETTER, None, SEEN, "mean 1.33, 95 % 1.20 to 1.48 over 3 networks, compared to 1.10"),
        (BETTER, 1.35, IN_PART, "undecided: "),
        (BETTER, 1.6, IN_PART, "not seen: "),
        (LIKE, None, SEEN, ""),
    ):
        found = judged(tmp_path, MeanRatioClaim(names, "a", relation, "b", "samples_per_second", factor))
        assert found.verdict == verdict
        assert why in found.why[-1]
    one = MeanRatioClaim(names[:1], "a", BETTER, "b", "samples_per_second", None)
    assert judged(tmp_path, one).verdict == UNTESTED


def test_full_scale_order_prefers_measured_to_predicted_time(tmp_path):
    write(tmp_path, RESNET, {"a": {"samples_per_second": 9.0}, "b": {}}, runs=3, scale="full")
    write(tmp_path, VGG, {"b": {"samples_per_second": 7.0}}, runs=3, scale="full")
    column = "predicted_samples_per_second"
    found = judged(tmp_path, order(BETTER, "b", experiment=RESNET, first="a", metric=column, against=VGG))
    assert found.verdict == "seen at full scale"
    assert ", samples/s: a 9 (3 runs) better than b 7 (3 runs)" in found.why[0]


@pytest.mark.parametrize(("scale", "word"), [("full", "seen at full scale"), ("small", None)])
def test_growth_compares_ratios_of_full_scale_networks(tmp_path, scale, word):
    for name, speed in ((VGG, 1.2), (RESNET, 1.5)):
        write(tmp_path, name, {"stale": {"samples_per_second": speed}}, scale=scale)
        write(tmp_path, f"{name}_baseline", {"sequential": {"samples_per_second": 1.0}}, scale=scale)
    found = judged(tmp_path, RatioTrendClaim((VGG, RESNET), "stale", "sequential", "predicted_samples_per_second"))
    assert (found and found.verdict) == word


def test_verdict_names_small_network_with_sizes_and_data(tmp_path):
    write(tmp_path, VGG, {"pipeoptim": around(80.0), "gpipe": around(80.0, 0.2)})
    path = tmp_path / "pipeoptim" / VGG / "small" / "made.json"
    path.write_text(path.read_text().replace("~dataset.size", "model=resnet20 model.depth=8 ~dataset.size"))
    assert "small (resnet20 depth=8, fashion_mnist_mini)" in judged(tmp_path, order(LIKE, "gpipe")).why[0]


def test_claim_without_results_has_no_verdict_and_damaged_ones_are_refused(tmp_path):
    assert results(tmp_path) == {}
    assert judge([order(LIKE, "gpipe")], {}) is None
    write(tmp_path, VGG, {})
    (tmp_path / "pipeoptim" / VGG / "small" / "made.json").unlink()
    with pytest.raises(ConfigError, match=r"table4_vgg16/small: .*made.json"):
        results(tmp_path)


def test_printed_numbers_stand_beside_measured_ones(tmp_path):
    write(tmp_path, VGG, {"pipeoptim": around(80.0), "gpipe": None})
    row = {"optimizer": "adamw", "model": "VGG-16", "pipeoptim": "70.89", "gpipe": "70.12"}
    rows = measured(tmp_path, {"table4": PublishedTable("table4", (row,))})
    cells = [[each[name] for name in ("name", "paper", "metric", "value")] for each in rows]
    assert cells == [["pipeoptim", "70.89", "best top1", "80.00 ± 0.10"], ["gpipe", "70.12", "best top1", ""]]
    assert {each["data"] for each in rows} == {"fashion_mnist_mini"}
    assert all("dataset=fashion_mnist_mini ~dataset.size" in each["command"] for each in rows)


def test_runs_are_outdated_once_their_preset_has_other_settings_or_no_small_scale(tmp_path):
    for name in (RESNET, "table6_inception_v3"):
        write(tmp_path, name, {"pipeoptim": around(80.0)})
        assert results(tmp_path)[name].outdated
    assert [row["settings of today"] for row in measured(tmp_path)] == ["no", "no"]
    shutil.rmtree(tmp_path / "pipeoptim" / "table6_inception_v3")
    up_to_date(tmp_path, RESNET, "small")
    assert not results(tmp_path)[RESNET].outdated
    assert [row["settings of today"] for row in measured(tmp_path)] == ["yes"]


@pytest.mark.parametrize(("scale", "told"), [("small", True), ("full", False)])
def test_minutes_of_an_idle_machine_are_told_of_the_small_scale_alone(tmp_path, scale, told):
    write(tmp_path, RESNET, {"pipeoptim": around(80.0)}, scale=scale)
    up_to_date(tmp_path, RESNET, scale, timed=False, wall_s=1e6)
    (row,) = measured(tmp_path)
    assert bool(row["minutes if idle"]) is told
