"""The verdicts that runs give on claims."""

import json
import shlex
import shutil
import statistics

import pytest

from papers.claims import Apart, ContrastClaim, MeanRatioClaim, RankingClaim, RatioTrendClaim, Reaches
from papers.difference import Relation
from papers.judgement import judge
from papers.measured_section import measured_section
from papers.pages import PAPERS
from papers.paper import PublishedTable
from papers.results import read_results
from papers.targets import ReproductionTarget
from pipetrain.engine.errors import ConfigError


def around(mean, spread=0.1):
    """Accuracies of three seeds."""
    return [mean - spread, mean, mean + spread]


def write(folder, name, groups, *, scale="small", best=0.0):
    """Results of a small sweep: name of a group -> top1 of its runs, or None if they diverged.

    Args:
        folder: of results.
        name: of the preset.
        groups: the groups.
        scale: of the runs.
        best: how much higher the best evaluation is than the last.
    """
    content = []
    for group, found in groups.items():
        mean = {"top1": 90.0, "best_top1": 90.0}  # of those that diverged, before they did
        if found:
            mean = {"top1": statistics.fmean(found), "best_top1": statistics.fmean(found) + best}
        runs = [
            {"seed": seed, "status": "completed", "final": {"top1": top1, "loss": 100 - top1},
             "best": {"top1": top1 + best}}
            for seed, top1 in enumerate(found or [])
        ]  # fmt: skip
        content.append(
            {
                "name": group,
                "statuses": {"completed": len(runs)} if found else {"diverged": 3},
                "mean": mean,
                "standard_deviation": dict.fromkeys(("top1", "best_top1"), statistics.stdev(found)) if found else {},
                "runs": runs,
            }
        )
    command = (
        f"pipetrain run --multirun experiment=pipeoptim/{name} dataset=fashion_mnist_mini ~dataset.size resume=auto"
    )
    made = {"command": command, "runs": 3, "wall_s": 60.0, "made_with": {"cores": 2, "cpu": "some"}}
    path = folder / "pipeoptim" / name / scale
    path.mkdir(parents=True)
    (path / "sweep.json").write_text(json.dumps({"metric": "top1", "groups": content}))
    (path / "made.json").write_text(json.dumps(made))


def order(relation, *others, **more):
    return RankingClaim("table4_vgg16", "pipeoptim", relation, others, **more)


def judged(folder, *rules, **more):
    return judge(rules, read_results(folder, "pipeoptim"), **more)


@pytest.mark.parametrize(
    ("ours", "other", "better", "like", "worse"),
    [
        (around(80.0), [79.0, 79.11, 79.2], "seen", "seen", "not seen"),
        (around(79.0), [80.0, 80.11, 80.2], "not seen", "seen", "seen"),
        (around(75.0), [80.0, 80.11, 80.2], "not seen", "not seen", "seen"),
        ([70.0, 80.0, 90.0], [80.0, 80.0, 80.5], "undecided", "undecided", "undecided"),
        (around(80.0), None, "seen", "seen", "not seen"),
        (None, around(20.0), "not seen", "not seen", "seen"),
    ],
)
def test_verdict_of_trained_models_names_its_scale(tmp_path, ours, other, better, like, worse):
    write(tmp_path, "table4_vgg16", {"pipeoptim": ours, "gpipe": other})
    for relation, word in ((Relation.BETTER, better), (Relation.LIKE, like), (Relation.WORSE, worse)):
        expected = word if word == "undecided" else f"{word} at small scale"
        assert judged(tmp_path, order(relation, "gpipe")).verdict == expected


def test_claim_with_one_of_its_orders_is_partly_seen(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0, 0.2), "pipedream": [69.9, 70.0, 70.2]})
    write(tmp_path, "table4_vgg16_2bw", {"pipedream_2bw": [89.9, 90.0, 90.2]})
    found = judged(tmp_path, order(Relation.BETTER, "pipedream", "pipedream_2bw"))
    assert found.verdict == "seen in part at small scale, parts uncorrected"
    assert found.why == [
        "seen: table4_vgg16, small (fashion_mnist_mini), final top1: pipeoptim 80.00 ± 0.20 (3 runs) better than "
        "pipedream 70.03 ± 0.15 (3 runs); gain 9.97, 95 % 9.82 to 10.11, paired, 3 seeds",
        "not seen: table4_vgg16, small (fashion_mnist_mini), final top1: pipeoptim 80.00 ± 0.20 (3 runs) not better "
        "than pipedream_2bw 90.03 ± 0.15 (3 runs); gain -10.03, 95 % -10.18 to -9.89, paired, 3 seeds",
    ]


def test_part_whose_companion_was_not_run_stands_open(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "pipedream": around(70.0, 0.2)})
    found = judged(tmp_path, order(Relation.BETTER, "pipedream", "pipedream_2bw"), superlative=True)
    assert found.verdict == "undecided"
    assert "not tested: table4_vgg16, small (fashion_mnist_mini): pipedream_2bw was not run" in found.why


def test_evidence_names_the_experiment_of_the_other_group(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0)})
    write(tmp_path, "table4_alexnet", {"pipeoptim": around(70.0, 0.2)})
    found = judged(tmp_path, order(Relation.BETTER, "pipeoptim", against="table4_alexnet"))
    assert "better than pipeoptim 70.00 ± 0.20 (3 runs) of table4_alexnet; gain 10.00" in found.why[0]


def test_verdict_counts_experiments_run_for_the_claim(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": around(70.0, 0.2)})
    found = judged(
        tmp_path, *(RankingClaim(name, "pipeoptim", Relation.BETTER, ("gpipe",)) for name in ("table4_vgg16", "x"))
    )
    assert found.verdict == "seen at small scale, 1 of 2 experiments"
    assert found.why[-1] == "not run: x"


def test_best_evaluations_are_compared_if_paper_prints_them(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": around(70.0, 0.2)}, best=2.0)
    assert "best top1: pipeoptim 82.00" in judged(tmp_path, order(Relation.BETTER, "gpipe"), best=True).why[0]
    assert "final top1: pipeoptim 80.00" in judged(tmp_path, order(Relation.BETTER, "gpipe")).why[0]


def test_experiment_that_does_not_meet_its_control_tests_nothing(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": around(70.0, 0.2)})
    rules = [
        order(Relation.BETTER, "gpipe", controls=(Reaches("table4_vgg16", "gpipe", "top1", least),))
        for least in (60, 90)
    ]
    fit, unfit = (judged(tmp_path, rule) for rule in rules)
    assert fit.verdict == "seen at small scale"
    assert (unfit.verdict, unfit.tested) == ("not tested here", False)
    assert unfit.why == [
        "not tested: table4_vgg16, small (fashion_mnist_mini): gpipe 70.00 ± 0.20 (3 runs) does not reach a final top1 "
        "of 90"
    ]


@pytest.mark.parametrize(("scale", "word"), [("small", "not tested here"), ("full", "seen at full scale")])
def test_value_for_data_of_small_scale_is_not_asked_of_full_scale(tmp_path, scale, word):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": around(70.0, 0.2)}, scale=scale)
    rule = order(Relation.BETTER, "gpipe", controls=(Reaches("table4_vgg16", "gpipe", "top1", 90, small=True),))
    assert judged(tmp_path, rule).verdict == word


@pytest.mark.parametrize(
    ("delayed", "word"),
    [
        ([49.0, 49.3, 48.9], "seen at small scale"),
        ([30.0, 30.2, 29.8], "not seen at small scale"),
        ([35.0, 49.0, 41.0], "undecided"),
    ],
)
def test_costs_of_a_change_are_compared_seed_by_seed(tmp_path, delayed, word):
    write(tmp_path, "table4_vgg16", {"delayed": around(40.0), "plain": around(50.0)})
    write(tmp_path, "table4_alexnet", {"delayed": delayed, "plain": around(50.0)})
    costs = [(name, "delayed", "plain") for name in ("table4_vgg16", "table4_alexnet")]
    claim = ContrastClaim("loss", *costs)
    found = judged(tmp_path, claim)
    assert found.verdict == word
    shutil.rmtree(tmp_path / "pipeoptim" / "table4_alexnet")
    assert judged(tmp_path, claim) is None
    assert "delayed over plain in table4_vgg16 1.200" in found.why[0]


def up_to_date(folder, name, scale, **more):
    """Gives the runs the command that their preset has today, and more."""
    path = folder / "pipeoptim" / name / scale / "made.json"
    words = ReproductionTarget(f"pipeoptim/{name}", scale).words(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": shlex.join(["pipetrain", *words]), **more}))


@pytest.mark.parametrize(
    ("scale", "why"),
    [
        ("full", "only the small scale of table4_alexnet was measured"),
        ("small", "only the runs of table4_alexnet are from before the small scale was changed"),
    ],
)
def test_runs_of_other_scale_or_settings_are_not_compared(tmp_path, scale, why):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": around(70.0, 0.2)}, scale=scale)
    write(tmp_path, "table4_alexnet", {"pipeoptim": around(70.0), "gpipe": around(70.0, 0.2)})
    up_to_date(tmp_path, "table4_vgg16", scale)
    control = Apart("table4_alexnet", "pipeoptim", "table4_vgg16", "gpipe", "top1", points=-1.0)
    costs = [(name, "pipeoptim", "gpipe") for name in ("table4_alexnet", "table4_vgg16")]
    for rule in (
        order(Relation.BETTER, "gpipe", against="table4_alexnet"),
        order(Relation.BETTER, "gpipe", controls=(control,)),
        ContrastClaim("loss", *costs),
    ):
        found = judged(tmp_path, rule)
        assert (found.verdict, found.why[0].rpartition(": ")[2]) == ("not tested here", why)


def write_measured(folder, name, scale, means, *, runs=1):
    """Results of so many equal runs a group: name of a group -> its means."""
    groups = [
        {
            "name": group,
            "statuses": {"completed": runs},
            "mean": {"top1": 50.0, **found},
            "standard_deviation": {},
            "runs": [found] * runs,
        }
        for group, found in means.items()
    ]
    path = folder / "zhang" / name / scale
    path.mkdir(parents=True)
    (path / "sweep.json").write_text(json.dumps({"metric": "top1", "groups": groups}))
    (path / "made.json").write_text(json.dumps({"command": f"pipetrain run --multirun experiment=zhang/{name}"}))


def test_experiment_without_evaluation_shows_throughput_only(tmp_path):
    rate = {"name": "pipeoptim", "statuses": {"completed": 1}, "mean": {"samples_per_second": 6.4014}}
    sweep = {"metric": None, "groups": [rate | {"standard_deviation": {}, "runs": []}]}
    write(tmp_path, "table5_gnmt8", {})
    (tmp_path / "pipeoptim" / "table5_gnmt8" / "small" / "sweep.json").write_text(json.dumps(sweep))
    results = read_results(tmp_path, "pipeoptim")
    assert judge([RankingClaim("table5_gnmt8", "pipeoptim", Relation.LIKE, ("pipeoptim",))], results) is None
    text = "\n".join(line for block in measured_section(PAPERS["pipeoptim"], {}, results) for line in block)
    assert "|  | samples/s | runs |\n" in text
    assert "| pipeoptim | 6.4 | 1 completed |" in text
    assert "![table5_gnmt8: costs](" in text


def test_runs_that_failed_count_as_having_missed_the_target(tmp_path):
    reached = {"status": "completed", "target_epochs": 8, "first_loss": 7.0, "loss": 4.5}
    runs = [{**reached, "seed": 0}, {"status": "diverged", "seed": 1}]
    runs.append({"status": "completed", "seed": 2, "first_loss": 7.0, "loss": 6.9})
    group = {"name": "pipedream", "statuses": {"completed": 2, "diverged": 1}, "standard_deviation": {}, "runs": runs}
    sweep = {"metric": None, "groups": [group | {"mean": {"target_epochs": 8}}]}
    write(tmp_path, "table5_gnmt8", {})
    (tmp_path / "pipeoptim" / "table5_gnmt8" / "small" / "sweep.json").write_text(json.dumps(sweep))
    blocks = measured_section(PAPERS["pipeoptim"], {}, read_results(tmp_path, "pipeoptim"))
    text = "\n".join(line for block in blocks for line in block)
    assert "| pipedream | 8.00 (1 of 3) | 1 completed, 1 diverged, 1 learned nothing |" in text


def test_missed_target_ranks_last_and_lost_column_is_unknown(
    tmp_path,
):
    write_measured(tmp_path, "table4_resnet20", "small", {"a": {"target_epochs": 3}, "b": {}}, runs=2)
    results = read_results(tmp_path, "zhang")

    def found(first, other, column):
        return judge([RankingClaim("table4_resnet20", first, Relation.BETTER, (other,), column)], results)

    assert found("a", "b", "target_epochs").verdict == "seen at small scale"
    assert found("b", "a", "target_epochs").verdict == "not seen at small scale"
    assert found("a", "b", "predicted_target_s").verdict == "not tested here"
    assert "to target, s, predicted was not measured, or not kept" in found("a", "b", "predicted_target_s").why[0]


def test_an_order_of_two_methods_that_diverged_is_untested(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": None, "gpipe": None})
    found = judged(tmp_path, order(Relation.WORSE, "gpipe"))
    assert found.verdict == "not tested here"
    assert "neither pipeoptim nor gpipe completed a run" in found.why[0]


def test_closeness_is_untested_if_no_method_is_worse(tmp_path):
    alike = {"pipeoptim": [79.9, 80.0, 80.1], "gpipe": [80.0, 80.1, 79.9], "pipedream": [80.1, 79.9, 80.0]}
    write(tmp_path, "table4_vgg16", alike)
    found = judged(tmp_path, order(Relation.LIKE, "gpipe"))
    assert found.verdict == "not tested here"
    assert "no other method is worse either" in found.why[0]
    write(tmp_path, "table4_vgg16_2bw", {"pipedream_2bw": [69.9, 70.0, 70.2]})
    assert judged(tmp_path, order(Relation.LIKE, "gpipe")).verdict == "seen at small scale"


def with_losses(folder, name, group, losses):
    """Gives the runs of a group their final losses after a first training loss of 2.3."""
    path = folder / "pipeoptim" / name / "small" / "sweep.json"
    content = json.loads(path.read_text())
    (found,) = (each for each in content["groups"] if each["name"] == group)
    for run, loss in zip(found["runs"], losses, strict=True):
        run["final"]["loss"], run["first_loss"] = loss, 2.3
    found["mean"] |= {"loss": statistics.fmean(losses), "first_loss": 2.3}
    path.write_text(json.dumps(content))


def test_runs_that_learned_nothing_where_others_did_are_counted_apart(tmp_path):
    alike = {"pipeoptim": [80.0, 10.0, 80.2], "gpipe": [80.0, 80.1, 80.3], "pipedream": [70.0, 70.1, 70.3]}
    write(tmp_path, "table4_vgg16", alike)
    with_losses(tmp_path, "table4_vgg16", "pipeoptim", [0.5, 2.3, 0.5])
    found = read_results(tmp_path, "pipeoptim")["table4_vgg16"].groups[0]
    assert (found.completed, found.ended) == (2, {"completed": 2, "learned nothing": 1})
    assert (found.means["top1"], found.lost) == (pytest.approx(80.1), {1})
    like = judged(tmp_path, order(Relation.LIKE, "gpipe"))
    assert like.verdict == "undecided"
    assert "pipeoptim 80.10 ± 0.14 (2 runs, 1 learned nothing) against gpipe" in like.why[0]


def test_runs_that_learned_nothing_are_not_apart_if_none_learned(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(10.0), "gpipe": around(80.0)})
    with_losses(tmp_path, "table4_vgg16", "pipeoptim", [2.3, 2.3, 2.3])
    assert read_results(tmp_path, "pipeoptim")["table4_vgg16"].groups[0].ended == {"completed": 3}
    assert judged(tmp_path, order(Relation.FAILS, "gpipe")).verdict == "seen at small scale"


@pytest.mark.parametrize(
    ("plain", "word"),
    [(around(78.0), "seen at small scale"), (None, "seen at small scale"), (around(79.9), "not tested here")],
)
def test_method_without_remedy_in_another_experiment_is_a_control(tmp_path, plain, word):
    write(tmp_path, "table4_vgg16", {"pipeoptim": [79.9, 80.0, 80.1], "gpipe": [80.0, 80.1, 79.9]})
    write(tmp_path, "table4_alexnet", {"naive_async": plain})
    control = Apart("table4_alexnet", "naive_async", "table4_vgg16", "gpipe", "top1", points=1.0)
    assert judged(tmp_path, order(Relation.LIKE, "gpipe", controls=(control,))).verdict == word


def test_superlative_fails_or_is_undecided_with_any_one_order(tmp_path):
    groups = {
        "pipeoptim": around(80.0),
        "gpipe": around(90.0, 0.2),
        "pipedream": around(70.0, 0.2),
        "lwp": [60, 80, 99],
    }
    write(tmp_path, "table4_vgg16", groups)
    mixed = order(Relation.BETTER, "gpipe", "pipedream")
    assert judged(tmp_path, mixed).verdict == "seen in part at small scale, parts uncorrected"
    assert judged(tmp_path, mixed, superlative=True).verdict == "not seen at small scale"
    open_ = order(Relation.BETTER, "pipedream", "lwp")
    assert judged(tmp_path, open_).verdict == "seen in part at small scale, parts uncorrected"
    assert judged(tmp_path, open_, superlative=True).verdict == "undecided"
    not_run = RankingClaim("table4_alexnet", "pipeoptim", Relation.BETTER, ("pipedream",))
    assert judged(tmp_path, open_, not_run, superlative=True).verdict == "undecided"


@pytest.mark.parametrize(("factor", "word"), [(1.2, "seen"), (1.5, "seen in part")])
def test_gain_below_the_factor_of_the_paper_is_seen_in_part(tmp_path, factor, word):
    rates = {"a": {"samples_per_second": 9.1}, "b": {"samples_per_second": 7.0}}
    write_measured(tmp_path, "table5_resnet56", "small", rates, runs=3)
    rule = RankingClaim("table5_resnet56", "a", Relation.BETTER, ("b",), "samples_per_second", factor=factor)
    found = judge([rule], read_results(tmp_path, "zhang"))
    assert found.verdict.removesuffix(", parts uncorrected") == f"{word} at small scale"
    assert f"1.30X of it (the paper: {factor}X)" in found.why[1]


def test_one_network_timing_is_no_test_but_several_have_interval(tmp_path):
    names = ("table5_resnet56", "table5_resnet110", "table5_resnet224")
    for name, gain in zip(names, (1.38, 1.34, 1.27), strict=True):
        write_measured(tmp_path, name, "small", {"a": {"samples_per_second": gain}, "b": {"samples_per_second": 1.0}})
    results = read_results(tmp_path, "zhang")
    single = judge([RankingClaim(names[0], "a", Relation.BETTER, ("b",), "samples_per_second")], results)
    assert single.verdict == "not tested here"
    assert "one timing" in single.why[0]

    def of_networks(relation, factor=None, experiments=names):
        return judge([MeanRatioClaim(experiments, "a", relation, "b", "samples_per_second", factor)], results)

    assert of_networks(Relation.BETTER).verdict == "seen at small scale"
    assert "mean 1.33, 95 % 1.20 to 1.48 over 3 networks, compared to 1.10" in of_networks(Relation.BETTER).why[0]
    assert of_networks(Relation.BETTER, 1.35).verdict == "seen in part at small scale, parts uncorrected"
    assert of_networks(Relation.BETTER, 1.35).why[1].startswith("undecided: ")
    assert of_networks(Relation.BETTER, 1.6).why[1].startswith("not seen: ")
    assert of_networks(Relation.LIKE).verdict == "seen at small scale"
    assert of_networks(Relation.BETTER, experiments=names[:1]).verdict == "not tested here"


@pytest.mark.parametrize(("scale", "word"), [("full", "seen at full scale"), ("small", "not tested here")])
def test_order_that_only_the_full_scale_tells(tmp_path, scale, word):
    write_measured(tmp_path, "table5_resnet56", scale, {"a": {"stage_bytes": 7.0}, "b": {"stage_bytes": 9.0}})
    rule = RankingClaim("table5_resnet56", "a", Relation.BETTER, ("b",), "stage_bytes", full=True)
    assert judge([rule], read_results(tmp_path, "zhang")).verdict == word


def test_full_scale_order_prefers_measured_to_predicted_time(tmp_path):
    write_measured(tmp_path, "table5_resnet56", "full", {"a": {"samples_per_second": 9.0}, "b": {}}, runs=3)
    write_measured(tmp_path, "table6_resnet56", "full", {"b": {"samples_per_second": 7.0}}, runs=3)
    rule = RankingClaim(
        "table5_resnet56", "a", Relation.BETTER, ("b",), "predicted_samples_per_second", against="table6_resnet56"
    )
    found = judge([rule], read_results(tmp_path, "zhang"))
    assert found.verdict == "seen at full scale"
    assert "full, samples/s: a 9 (3 runs) better than b 7 (3 runs)" in found.why[0]


@pytest.mark.parametrize(("scale", "word"), [("full", "seen at full scale"), ("small", None)])
def test_growth_compares_ratios_of_full_scale_networks(tmp_path, scale, word):
    for name, speed in (("table5_resnet56", 1.2), ("table5_resnet110", 1.5)):
        write_measured(tmp_path, name, scale, {"stale": {"samples_per_second": speed}})
        write_measured(tmp_path, f"{name}_baseline", scale, {"sequential": {"samples_per_second": 1.0}})
    rule = RatioTrendClaim(
        ("table5_resnet56", "table5_resnet110"), "stale", "sequential", "predicted_samples_per_second"
    )
    found = judge([rule], read_results(tmp_path, "zhang"))
    assert (found and found.verdict) == word


def test_verdict_names_small_network_with_sizes_and_data(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": around(80.0, 0.2)})
    path = tmp_path / "pipeoptim" / "table4_vgg16" / "small" / "made.json"
    path.write_text(path.read_text().replace("~dataset.size", "model=resnet20 model.depth=8 ~dataset.size"))
    found = judged(tmp_path, order(Relation.LIKE, "gpipe"))
    assert ": table4_vgg16, small (resnet20 depth=8, fashion_mnist_mini), final top1: pipeoptim " in found.why[0]


def test_claim_without_results_has_no_verdict(tmp_path):
    assert read_results(tmp_path, "pipeoptim") == {}
    assert judge([order(Relation.LIKE, "gpipe")], {}) is None


def test_damaged_results_are_refused_by_their_folder(tmp_path):
    write(tmp_path, "table4_vgg16", {})
    (tmp_path / "pipeoptim" / "table4_vgg16" / "small" / "made.json").unlink()
    with pytest.raises(ConfigError, match=r"table4_vgg16/small: damaged results: .*made.json.*; measure them again"):
        read_results(tmp_path, "pipeoptim")


def test_page_shows_printed_and_measured_numbers_and_curves(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": around(80.0), "gpipe": None})
    row = {"optimizer": "adamw", "model": "VGG-16", "pipeoptim": "70.89", "gpipe": "70.12"}
    tables = {"table4": PublishedTable("table4", (row,))}
    blocks = list(measured_section(PAPERS["pipeoptim"], tables, read_results(tmp_path, "pipeoptim")))
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in blocks[-2][2:]]
    assert cells == [["pipeoptim", "70.89", "80.00 ± 0.10"], ["gpipe", "70.12", ""]]
    assert blocks[-3][0].startswith("On `fashion_mnist_mini`: Fashion-MNIST subset bundled with the package: 6,000 + ")
    assert blocks[-3][0].endswith(". Changed for the small scale: `dataset=fashion_mnist_mini '~dataset.size'`.")
    assert blocks[-1][0].endswith("(images/pipeoptim_table4_vgg16.png)")


def test_runs_are_outdated_once_their_preset_has_other_settings(tmp_path):
    write(tmp_path, "table6_resnet101", {"pipeoptim": around(80.0)})

    def found():
        results = read_results(tmp_path, "pipeoptim")
        blocks = measured_section(PAPERS["pipeoptim"], {}, results)
        text = "".join(line for block in blocks for line in block)
        return results["table6_resnet101"].outdated, "from before" in text

    assert found() == (True, True)
    up_to_date(tmp_path, "table6_resnet101", "small")
    assert found() == (False, False)


@pytest.mark.parametrize(("scale", "told"), [("small", True), ("full", False)])
def test_minutes_of_an_idle_machine_are_told_of_the_small_scale_alone(tmp_path, scale, told):
    write(tmp_path, "table6_resnet101", {"pipeoptim": around(80.0)}, scale=scale)
    up_to_date(tmp_path, "table6_resnet101", scale, timed=False, wall_s=1e6)
    blocks = measured_section(PAPERS["pipeoptim"], {}, read_results(tmp_path, "pipeoptim"))
    assert any("on an idle machine it takes about" in line for block in blocks for line in block) is told


def test_runs_at_a_small_scale_that_their_preset_no_longer_has_are_outdated(tmp_path):
    write(tmp_path, "table6_inception_v3", {"pipeoptim": around(80.0)})
    assert read_results(tmp_path, "pipeoptim")["table6_inception_v3"].outdated
