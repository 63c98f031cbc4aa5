"""The presets of the papers' experiments: what they say of themselves, and that they compose at both scales."""

import re
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.equal_bits import PARTS

from papers.computed import computed_part
from papers.paper import read_tables
from papers.presets import FOLDER, composed, preset, presets
from papers.publications import PAPERS
from papers.targets import (
    FULL,
    SMALL,
    ReproductionTarget,
    has_small_scale,
    parts_of,
    presets_of,
    rounds_of,
    targets_of,
)
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.composition import combinations
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.preflight import prepare

COMPUTED = {
    *((paper.name, part) for paper in PAPERS.values() for part in paper.computed),
    *((paper.name, figure.part) for paper in PAPERS.values() for figure in paper.figures),
    ("pipeoptim", "table2"),
    ("pipemare", "table4"),
    ("pipemare", "table5"),
    ("zhang", "table7"),
    ("zhang", "table9"),
}
ONE_OF_EACH = ("pipeoptim/table4_vgg16", "zhang/table5_resnet56")
MAPS = [name for name in presets() if name.startswith("map/")]


@cache
def smaller():
    """The presets that have a small scale; reading all takes seconds."""
    return [name for name in presets() if has_small_scale(name)]


def of_papers(names):
    return [name for name in names if not name.startswith(("map/", "slowdown/", "messages/"))]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_preset_of_a_paper_composes_at_both_scales(name):
    full = composed([f"experiment={name}", *ReproductionTarget(name, FULL).settings])
    small = composed([f"experiment={name}", *next(combinations(ReproductionTarget(name, SMALL).settings))])
    assert small.train.epochs < full.train.epochs


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])  # side by side
def test_every_preset_of_every_paper_composes_at_its_small_scale(half):
    for name in smaller()[half::2]:
        composed([f"experiment={name}", *next(combinations(ReproductionTarget(name, SMALL).settings))])


def test_recomputation_in_segments_of_stages_in_layers_can_be_run(tmp_path):
    name = "pipemare/fig17_cifar10"
    *_, last = combinations(ReproductionTarget(name, SMALL).settings)
    job = prepare(composed([f"experiment={name}", *last]), RunDirectory(tmp_path))
    assert job.settings.train.recompute_boundaries == [0, 1, 2, 3, 4, 5, 6, 7]


def test_every_preset_names_its_place_in_the_paper_and_its_cost():
    assert {name.partition("/")[0] for name in presets()} == PAPERS.keys() | {"map", "slowdown", "messages"}
    for name in presets():
        remarks = preset(name).remarks
        assert remarks.keys() >= {"paper", "cost"}, name
        assert ("minutes" in remarks) == has_small_scale(name), name
        assert not has_small_scale(name) or int(remarks["minutes"]) > 0, name


def test_small_scale_of_every_preset_takes_at_most_three_hours():
    for name in of_papers(smaller()):  # others are run in rounds, the first of which are short
        assert ReproductionTarget(name, SMALL).minutes <= 180, name


def test_every_training_claim_names_an_existing_experiment():
    for paper in PAPERS:
        for row in read_tables(Path(__file__).parents[2] / "results", paper)["claims"].rows:
            if row["experiment"]:
                assert f"{paper}/{row['experiment']}" in presets()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("zhang-table2_lenet5", ["zhang/table2_lenet5", "zhang/table2_lenet5_baseline"]),
        ("timeprest/fig3", ["timeprest/fig3", "timeprest/fig3_i_timeprest", "timeprest/fig3_pipedream"]),
    ],
)
def test_name_stands_for_all_presets_of_a_table_or_figure(name, found):
    assert [target.experiment for target in targets_of(name, SMALL)] == found
    assert len(targets_of("zhang", FULL)) == sum(each.startswith("zhang/") for each in presets())


def test_targets_start_with_cheapest_experiment_and_companions():
    found = [target.experiment for target in targets_of("papers", SMALL)]
    assert set(found) == set(of_papers(smaller()))
    assert ReproductionTarget(found[0], SMALL).minutes < 10 <= ReproductionTarget(found[-1], SMALL).minutes
    assert found.index("zhang/table2_lenet5_baseline") == found.index("zhang/table2_lenet5") + 1
    assert found.index("zhang/table2_resnet20") < found.index("zhang/table2_lenet5")


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("zhang/table2", "medium", "--scale medium"),
        ("zhang/table22", SMALL, "zhang/table22"),
        ("gpipe", SMALL, "gpipe"),
        ("zhang/table6", SMALL, "zhang/table6 --scale small: .*--scale full"),
    ],
)
def test_unknown_experiment_or_scale_is_refused(name, scale, message):
    with pytest.raises(ConfigError, match=message):
        targets_of(name, scale)
    assert len(targets_of("zhang/table6", FULL)) == 12


def test_full_scale_is_the_preset_alone(tmp_path):
    words = ReproductionTarget("zhang/table2_lenet5", FULL).words(tmp_path)
    assert " ".join(words) == (f"run --multirun experiment=zhang/table2_lenet5 hydra.sweep.dir={tmp_path} resume=auto")


@pytest.mark.slow
def test_experiment_sweeps_have_each_allowed_method_once():
    methods: dict[str, list[str]] = {}
    for name in presets():
        content = OmegaConf.load(FOLDER / "experiment" / f"{name}.yaml")
        if "hydra" not in content:
            continue
        swept = [each for each in str(content.hydra.sweeper.params.get("method", "")).split(",") if each]
        chosen = [item["override /method"] for item in content.defaults if "override /method" in item]
        methods[name] = [] if "phases" in content else swept or chosen
        if "pipedream_2bw" in methods[name]:
            assert content.train.microbatches >= content.partition.stages, name
        first = name.rpartition("_")[0]
        assert not set(methods.get(first, ())) & set(methods[name]), name


@pytest.mark.slow
def test_cost_of_every_preset_counts_its_runs():
    for name in presets():
        content = OmegaConf.load(FOLDER / "experiment" / f"{name}.yaml")
        if "hydra" in content:
            swept = [f"{key}={value}" for key, value in content.hydra.sweeper.params.items()]
            runs = len(list(combinations(swept)))
        else:
            rounds = ReproductionTarget(name, FULL).rounds
            runs = 5 * sum(len(list(combinations([f"{k}={v}" for k, v in each.given.items()]))) for each in rounds)
        assert preset(name).remarks["cost"].split()[0] == str(runs), name


def test_first_rounds_come_first_and_have_folders_of_their_own(tmp_path):
    targets = targets_of("slowdown", SMALL)
    rounds = rounds_of(targets)
    assert {each.number for each in rounds[: len(targets)]} == {1}
    assert len({each.runs(tmp_path) for each in rounds}) == len(rounds)
    (whole,) = rounds_of(targets_of("slowdown/soap", FULL))
    assert whole.runs(tmp_path) == whole.target.runs(tmp_path)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("scale", [SMALL, FULL])
def test_map_compares_with_plain_training_first_and_measures_each_place_once(name, scale):
    first, *others = ReproductionTarget(name, scale).rounds
    assert (first.given["method"], first.given["partition.stages"].split(",")[0]) == ("naive_async", "1")
    assert all(each.compares for each in (first, *others))
    places = [
        (method, stages, *(each.given.get(setting) for setting in ("optimizer", "optimizer.error_feedback",
         "optimizer.lr_by_delay", "optimizer.momentum")), each.settings[-1] if "--tune" in each.settings else "")
        for each in (first, *others)
        for method in each.given["method"].split(",")
        for stages in each.given["partition.stages"].split(",")
    ]  # fmt: skip
    assert len(set(places)) == len(places)
    at_other_rates = [place for place in places if place[-1]]
    assert {place[:2] for place in at_other_rates} == ({("naive_async", "1")} if scale == SMALL else set())
    assert {int(stages) for _, stages, *_ in places} == {1, 2, 4, 8, 16, 32}


@pytest.mark.slow
@pytest.mark.parametrize("rest", PARTS)
@pytest.mark.parametrize("name", MAPS)
def test_every_round_of_the_map_composes(name, rest):
    """With the largest of its numbers of stages, and the last of its methods: how names go together is in each YAML."""
    for k, each in enumerate(ReproductionTarget(name, SMALL).rounds):
        if ((k + MAPS.index(name)) % 3 != 0) != rest:  # two maps have the same rounds
            continue
        words = [word for word in each.words(Path("outputs"))[1:-2] if "=" in word]
        composed([re.sub(r"^((?:partition\.stages|method|method\.delay)=).*,", r"\1", word) for word in words])


def test_comparison_has_each_setting_once_and_seeds_of_its_own(tmp_path):
    this = next(each for each in ReproductionTarget("map/gpt", SMALL).rounds if "optimizer" in each.given)
    words = this.words(tmp_path)
    names = [word.partition("=")[0] for word in words[1:-2]]
    assert len(set(names)) == len(names)
    assert "seed" not in names
    assert words[:2] == ["compare", "experiment=map/gpt"]
    assert words[-2:] == ["-o", str(this.runs(tmp_path))]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("PipeOptim, table IV and fig. 2(a); § V", {"table4", "fig2"}),
        ("PipeMare, tables 2, 3 and 8, figs 3 and 7", {"table2", "table3", "table8", "fig3", "fig7"}),
        ("app. C.2.3; figs 13 to 15", {"fig13", "fig14", "fig15"}),
        ("§ IV", set()),
    ],
)
def test_tables_and_figures_are_found_in_a_source(text, parts):
    assert parts_of(text) == parts


@pytest.mark.slow
def test_every_table_and_figure_has_presets_or_is_computed():
    page = (Path(__file__).parents[2] / "docs" / "reproduction" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert [paper for paper, _ in rows] == list(PAPERS)
    for paper, cells in rows:
        for kind, first, last in re.findall(r"\b(table|fig)(\d+)(?: to \1(\d+))?", cells):
            for number in range(int(first), int(last or first) + 1):
                name = f"{paper}-{kind}{number}"
                assert presets_of(name) or (paper, f"{kind}{number}") in COMPUTED, name
    assert all(f"{part}" in dict(rows)[paper] for paper, part in COMPUTED)


def test_part_that_needs_no_training_is_drawn_or_printed(tmp_path):
    assert str(tmp_path / "pipemare_fig09.svg") in computed_part("pipemare-fig9")(tmp_path)[0]
    assert (tmp_path / "pipemare_fig09.svg").read_text().startswith("<svg")
    assert len(computed_part("pipeoptim-table2")(tmp_path)) == 9
    assert computed_part("pipeoptim-table22") is None
