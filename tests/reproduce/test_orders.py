"""The verdicts that trained models give on claims."""

import json

import pytest

from pipetrain.errors import ConfigError
from pipetrain.reproduce.difference import Difference, Relation, shown
from pipetrain.reproduce.measured_section import measured_section
from pipetrain.reproduce.orders import Growth, Order, verdict
from pipetrain.reproduce.pages import PAPERS
from pipetrain.reproduce.published import PublishedTable
from pipetrain.reproduce.results import MeasuredGroup, results_of

OF_MEANS = (Relation.BETTER, Relation.LIKE, Relation.WORSE)


def write(folder, name, groups):
    """Results of a small sweep: name of a group -> top1 of its runs, mean and deviation, or None if they diverged."""
    content = [
        {
            "name": group,
            "statuses": {"completed": 3} if found else {"diverged": 3},
            "mean": {"top1": found[0], "predicted_samples_per_second": 1000.0} if found else {},
            "standard_deviation": {"top1": found[1]} if found else {},
            "runs": [],
        }
        for group, found in groups.items()
    ]
    command = (
        f"pipetrain run --multirun experiment=pipeoptim/{name} dataset=fashion_mnist_mini ~dataset.size resume=auto"
    )
    made = {"command": command, "runs": 3, "wall_s": 60.0, "made_with": {"cores": 2, "cpu": "some"}}
    path = folder / "pipeoptim" / name / "small"
    path.mkdir(parents=True)
    (path / "sweep.json").write_text(json.dumps({"metric": "top1", "groups": content}))
    (path / "made.json").write_text(json.dumps(made))


def order(relation, *others):
    return Order("table4_vgg16", "pipeoptim", relation, others)


@pytest.mark.parametrize(
    ("ours", "other", "better", "like", "worse"),
    [
        ((80.0, 0.2), (79.0, 0.2), "holds", "holds", "does not hold"),
        ((79.0, 0.2), (80.0, 0.2), "does not hold", "does not hold", "holds"),
        ((80.0, 0.2), (80.1, 0.2), "does not hold", "holds", "does not hold"),
        ((80.0, 1.0), (80.5, 1.0), "not tested here", "holds", "not tested here"),
        ((70.0, 20.0), (80.0, 1.0), "not tested here", "not tested here", "not tested here"),
        ((80.0, 1.0), None, "holds", "holds", "does not hold"),
        (None, (20.0, 1.0), "does not hold", "does not hold", "holds"),
    ],
)
def test_difference_counts_from_two_standard_errors_on_diverged_runs_are_worst_and_scattered_ones_tell_nothing(
    tmp_path, ours, other, better, like, worse
):
    write(tmp_path, "table4_vgg16", {"pipeoptim": ours, "gpipe": other})
    results = results_of(tmp_path, "pipeoptim")
    for relation, word in ((Relation.BETTER, better), (Relation.LIKE, like), (Relation.WORSE, worse)):
        assert verdict([order(relation, "gpipe")], results).verdict == word


def test_claim_holds_partly_where_one_of_its_orders_does_and_companions_count(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": (80.0, 0.1), "pipedream": (70.0, 0.1)})
    write(tmp_path, "table4_vgg16_2bw", {"pipedream_2bw": (90.0, 0.1)})
    found = verdict([order(Relation.BETTER, "pipedream", "pipedream_2bw")], results_of(tmp_path, "pipeoptim"))
    assert found.verdict == "holds partly"
    assert found.why == (
        "table4_vgg16, small (fashion_mnist_mini), final top1: pipeoptim 80.00 ± 0.10 (3 runs) better than pipedream "
        "70.00 ± 0.10 (3 runs), and worse than pipedream_2bw 90.00 ± 0.10 (3 runs)"
    )


def write_measured(folder, name, scale, means):
    """Results of one run a group: name of a group -> its means."""
    groups = [
        {
            "name": group,
            "statuses": {"completed": 1},
            "mean": {"top1": 50.0, **found},
            "standard_deviation": {},
            "runs": [found],
        }
        for group, found in means.items()
    ]
    path = folder / "zhang" / name / scale
    path.mkdir(parents=True)
    (path / "sweep.json").write_text(json.dumps({"metric": "top1", "groups": groups}))
    (path / "made.json").write_text(json.dumps({"command": f"pipetrain run --multirun experiment=zhang/{name}"}))


def test_experiment_without_evaluation_is_shown_by_its_throughput_and_tells_nothing_of_accuracy(tmp_path):
    rate = {"name": "pipeoptim", "statuses": {"completed": 1}, "mean": {"samples_per_second": 6.4014}}
    sweep = {"metric": None, "groups": [rate | {"standard_deviation": {}, "runs": []}]}
    write(tmp_path, "table5_gnmt8", {})
    (tmp_path / "pipeoptim" / "table5_gnmt8" / "small" / "sweep.json").write_text(json.dumps(sweep))
    results = results_of(tmp_path, "pipeoptim")
    assert verdict([Order("table5_gnmt8", "pipeoptim", Relation.LIKE, ("pipeoptim",))], results) is None
    text = "\n".join(line for block in measured_section(PAPERS["pipeoptim"], {}, results, tmp_path) for line in block)
    assert "|           | samples/s | runs        |\n" in text
    assert "| pipeoptim | 6.4       | 1 completed |" in text
    assert "![What table5_gnmt8 took](" in text


def test_run_that_never_reached_its_target_is_behind_one_that_did_and_where_none_has_the_column_there_is_no_verdict(
    tmp_path,
):
    write_measured(tmp_path, "table4_resnet20", "small", {"a": {"target_epochs": 3}, "b": {}})
    results = results_of(tmp_path, "zhang")

    def found(first, other, column):
        return verdict([Order("table4_resnet20", first, Relation.BETTER, (other,), column)], results)

    assert found("a", "b", "target_epochs").verdict == "holds"
    assert found("b", "a", "target_epochs").verdict == "does not hold"
    assert found("a", "b", "predicted_target_s") is None


def test_where_some_runs_never_reached_the_target_their_epochs_tell_only_that_others_never_did():
    some, all_ = (
        MeasuredGroup(name, 3, {"completed": 3}, {"target_epochs": epochs}, {"target_epochs": 0.1}, reached)
        for name, epochs, reached in (("some", 5.0, 2), ("all", 9.0, 3))
    )
    none = MeasuredGroup("none", 0, {"diverged": 3}, {}, {}, 0)
    found = [[Difference(some, other, "target_epochs").shows(each) for each in OF_MEANS] for other in (all_, none)]
    assert found == [[None, None, None], [True, True, False]]
    assert shown(some, "target_epochs") == "some 5.00 ± 0.10 (2 of 3 runs)"


def group(name, top1=80.0, *, completed=3, diverged=0, loss=0.5):
    """Runs with a deviation of 1, whose training began with a loss of 2."""
    ended = {"completed": completed, "diverged": diverged}
    means = {"top1": top1, "loss": loss, "first_loss": 2.0} if completed else {}
    return MeasuredGroup(name, completed, ended, means, {"top1": 1.0} if completed > 1 else {}, 0)


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (group("a", completed=0, diverged=3), group("b", completed=0, diverged=3)),
        (group("a", completed=2, diverged=1), group("b")),
        (group("a", completed=1), group("b", 10.0)),
        (group("a", loss=1.9), group("b", 70.0, loss=1.9)),
    ],
    ids=["both diverged", "a part diverged", "one run alone", "neither learned"],
)
def test_runs_that_cannot_be_compared_tell_nothing(ours, other):
    assert [Difference(ours, other, "top1").shows(each) for each in OF_MEANS] == [None] * 3


def test_method_of_which_a_part_diverged_is_worse_where_even_the_rest_is():
    part, whole = group("a", 60.0, completed=2, diverged=1), group("b")
    assert [Difference(part, whole, "top1").shows(each) for each in OF_MEANS] == [False, False, True]
    assert Difference(part, group("c", completed=0, diverged=3), "top1").shows(Relation.BETTER)


def test_runs_that_have_not_learned_are_worse_than_those_that_have_and_their_page_says_so():
    taught, untaught = group("a"), group("b", 10.0, loss=2.0)
    assert Difference(taught, untaught, "top1").shows(Relation.BETTER)
    assert Difference(untaught, untaught, "top1").word(Relation.LIKE) == "not told apart, as neither has learned, from"
    assert shown(group("c", completed=2, diverged=1), "top1") == "c 80.0 ± 1.0 (2 runs, 1 diverged)"


@pytest.mark.parametrize(
    ("ours", "within", "tells"),
    [
        (80.0, None, True), (79.0, None, None), (78.0, None, False), (90.0, None, True),
        (80.0, 2.0, True), (80.0, 0.1, None), (78.0, 4.0, True), (78.0, 3.0, None), (78.0, 1.9, False),
    ],
)  # fmt: skip
def test_no_worse_takes_runs_that_rule_out_a_loss_of_three_percent_or_of_what_the_paper_names(ours, within, tells):
    assert Difference(group("a", ours), group("b"), "top1", within).shows(Relation.LIKE) is tells


def timed(rate, *, runs=1, spread=0.0):
    ended, deviations = {"completed": runs}, {"samples_per_second": spread} if runs > 1 else {}
    return MeasuredGroup(f"{rate}", runs, ended, {"samples_per_second": rate, "stage_bytes": rate}, deviations, 0)


@pytest.mark.parametrize(
    ("ours", "tells"),
    [
        (timed(106.0), (True, True, False)),
        (timed(102.0), (None, True, None)),
        (timed(98.0), (None, True, None)),
        (timed(94.0), (False, None, True)),
        (timed(89.0), (False, False, True)),
        (timed(98.0, runs=3, spread=0.1), (None, True, None)),
    ],
)
def test_single_runs_differ_in_throughput_from_five_percent_on(ours, tells):
    found = Difference(ours, timed(100.0), "samples_per_second")
    assert tuple(found.shows(each) for each in OF_MEANS) == tells


def test_throughput_that_several_runs_tell_apart_is_alike_within_a_tenth_and_memory_is_exact():
    first, other, slow = (timed(rate, runs=3, spread=0.1) for rate in (95.0, 100.0, 80.0))
    assert Difference(first, other, "samples_per_second").shows(Relation.WORSE) is True
    assert Difference(first, other, "samples_per_second").shows(Relation.LIKE) is True
    assert Difference(slow, other, "samples_per_second").shows(Relation.LIKE) is False
    assert Difference(timed(99.0), timed(100.0), "stage_bytes").shows(Relation.BETTER) is True


@pytest.mark.parametrize(
    ("ours", "other", "fails", "word"),
    [
        (group("a", completed=0, diverged=3), group("b"), True, "failed, unlike"),
        (group("a", 10.0, loss=2.0), group("b"), True, "failed, unlike"),
        (group("a", 60.0), group("b"), False, "trained, as did"),
        (group("a", completed=2, diverged=1), group("b"), None, None),
        (group("a", completed=0, diverged=3), group("b", completed=0, diverged=3), None, None),
    ],
)
def test_method_fails_where_none_of_its_runs_learned_and_all_of_the_others_did(ours, other, fails, word):
    found = Difference(ours, other, "top1")
    assert found.shows(Relation.FAILS) is fails
    if word:
        assert found.word(Relation.FAILS) == word


def test_that_one_is_no_worse_says_nothing_where_the_experiment_has_none_that_is(tmp_path):
    alike = {"pipeoptim": (80.0, 0.1), "gpipe": (80.0, 0.1), "pipedream": (80.0, 0.1)}
    write(tmp_path, "table4_vgg16", alike)
    found = verdict([order(Relation.LIKE, "gpipe")], results_of(tmp_path, "pipeoptim"))
    assert found.verdict == "not tested here"
    assert found.why.endswith("gpipe 80.00 ± 0.10 (3 runs), as are all others there")
    write(tmp_path, "table4_vgg16_2bw", {"pipedream_2bw": (70.0, 0.1)})
    assert verdict([order(Relation.LIKE, "gpipe")], results_of(tmp_path, "pipeoptim")).verdict == "holds"


def test_superlative_falls_by_one_order(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": (80.0, 0.1), "gpipe": (90.0, 0.1), "pipedream": (70.0, 0.1)})
    rules, results = [order(Relation.BETTER, "gpipe", "pipedream")], results_of(tmp_path, "pipeoptim")
    assert verdict(rules, results).verdict == "holds partly"
    assert verdict(rules, results, superlative=True).verdict == "does not hold"


@pytest.mark.parametrize(("factor", "word"), [(1.2, "holds"), (1.5, "holds partly")])
def test_gain_below_the_factor_of_the_paper_holds_partly(tmp_path, factor, word):
    rates = {"a": {"samples_per_second": 9.1}, "b": {"samples_per_second": 7.0}}
    write_measured(tmp_path, "table5_resnet56", "small", rates)
    rule = Order("table5_resnet56", "a", Relation.BETTER, ("b",), "samples_per_second", factor=factor)
    found = verdict([rule], results_of(tmp_path, "zhang"))
    assert found.verdict == word
    assert f"1.30X of it (the paper: {factor}X)" in found.why


@pytest.mark.parametrize(("scale", "word"), [("full", "holds"), ("small", None)])
def test_order_that_only_the_full_scale_tells(tmp_path, scale, word):
    write_measured(tmp_path, "table5_resnet56", scale, {"a": {"stage_bytes": 7.0}, "b": {"stage_bytes": 9.0}})
    rule = Order("table5_resnet56", "a", Relation.BETTER, ("b",), "stage_bytes", full=True)
    found = verdict([rule], results_of(tmp_path, "zhang"))
    assert (found and found.verdict) == word


def test_order_at_full_scale_takes_the_measured_time_in_place_of_the_predicted_one(tmp_path):
    write_measured(tmp_path, "table5_resnet56", "full", {"a": {"samples_per_second": 9.0}, "b": {}})
    write_measured(tmp_path, "table6_resnet56", "full", {"b": {"samples_per_second": 7.0}})
    rule = Order(
        "table5_resnet56", "a", Relation.BETTER, ("b",), "predicted_samples_per_second", against="table6_resnet56"
    )
    found = verdict([rule], results_of(tmp_path, "zhang"))
    assert found.verdict == "holds"
    assert "full, samples/s: a 9 (1 run) better than b 7 (1 run)" in found.why


@pytest.mark.parametrize(("scale", "word"), [("full", "holds"), ("small", None)])
def test_growth_compares_the_ratios_of_networks_that_only_the_full_scale_tells_apart(tmp_path, scale, word):
    for name, speed in (("table5_resnet56", 1.2), ("table5_resnet110", 1.5)):
        write_measured(tmp_path, name, scale, {"stale": {"samples_per_second": speed}})
        write_measured(tmp_path, f"{name}_baseline", scale, {"sequential": {"samples_per_second": 1.0}})
    rule = Growth(("table5_resnet56", "table5_resnet110"), "stale", "sequential", "predicted_samples_per_second")
    found = verdict([rule], results_of(tmp_path, "zhang"))
    assert (found and found.verdict) == word


def test_verdict_names_the_small_network_with_its_sizes_and_its_data(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": (80.0, 0.1), "gpipe": (80.0, 0.1)})
    path = tmp_path / "pipeoptim" / "table4_vgg16" / "small" / "made.json"
    path.write_text(path.read_text().replace("~dataset.size", "model=resnet20 model.depth=8 ~dataset.size"))
    found = verdict([order(Relation.LIKE, "gpipe")], results_of(tmp_path, "pipeoptim"))
    assert found.why.startswith("table4_vgg16, small (resnet20 depth=8, fashion_mnist_mini), final top1: pipeoptim ")


def test_claim_without_results_has_no_verdict(tmp_path):
    assert results_of(tmp_path, "pipeoptim") == {}
    assert verdict([order(Relation.LIKE, "gpipe")], {}) is None


def test_damaged_results_are_refused_by_their_folder(tmp_path):
    write(tmp_path, "table4_vgg16", {})
    (tmp_path / "pipeoptim" / "table4_vgg16" / "small" / "made.json").unlink()
    with pytest.raises(ConfigError, match=r"table4_vgg16/small: damaged results: .*made.json.*; make them anew"):
        results_of(tmp_path, "pipeoptim")


def test_page_sets_printed_numbers_beside_the_measured_ones_and_shows_the_courses(tmp_path):
    write(tmp_path, "table4_vgg16", {"pipeoptim": (80.0, 0.1), "gpipe": None})
    row = {"optimizer": "adamw", "model": "VGG-16", "pipeoptim": "70.89", "gpipe": "70.12"}
    tables, page = {"table4": PublishedTable("table4", (row,))}, tmp_path / "docs"
    blocks = list(measured_section(PAPERS["pipeoptim"], tables, results_of(tmp_path, "pipeoptim"), page))
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in blocks[-2][2:]]
    assert cells == [["pipeoptim", "70.89", "80.00 ± 0.10"], ["gpipe", "70.12", ""]]
    assert blocks[-3][0].startswith("On `fashion_mnist_mini`: Fashion-MNIST subset bundled with the package: 6,000 + ")
    assert blocks[-3][0].endswith(". Changed for the small scale: `dataset=fashion_mnist_mini '~dataset.size'`.")
    assert blocks[-1][0].endswith("(../pipeoptim/table4_vgg16/small/sweep.png)")
