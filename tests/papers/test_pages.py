"""`python -m papers pages`: the committed pages are what it writes."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import support.cli
from support.quick_cases import every

from papers import field_map, field_map_page, measured_section, slowdown
from papers.judgement import companions
from papers.pages import PAPERS
from papers.paper import Agreement, read_tables
from papers.paper_page import extent, page
from papers.results import read_results
from papers.targets import ReproductionTarget, presets_of

ROOT = Path(__file__).parents[2]
VERDICTS = re.compile(
    r"holds( partly| by the paper's definition)?|does not hold|undecided|not tested here|"
    r"(seen|seen in part|not seen) at (small|full) scale(, \d of \d experiments)?(, parts uncorrected)?"
)
PAGES = sorted((ROOT / "docs" / "reproduction").glob("*.md"))


def papers():
    # zhang's models are hundreds of layers deep
    return [
        pytest.param(paper, id=name, marks=[pytest.mark.slow] * (name == "zhang")) for name, paper in PAPERS.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers())
def test_committed_page_is_what_the_command_writes(paper):
    tables = read_tables(ROOT / "results", paper.name)
    committed = ROOT / "docs" / "reproduction" / f"{paper.name}.md"
    results = read_results(ROOT / "results", paper.name)
    made = page(paper, tables, results)
    assert committed.read_text(encoding="utf-8") == made, "run `python -m papers pages`"
    assert all(f"    - also tried: {text}\n" in made for text in paper.tried.values())
    for figure in paper.figures:
        assert (committed.parent / "images" / figure.name).is_file()
    verdicts = paper.judged(tables, results)
    assert verdicts.keys() <= {row["name"] for row in tables["claims"].rows}
    assert all(VERDICTS.fullmatch(each.verdict) for each in verdicts.values())
    arithmetic = {each.verdict for each in paper.verdicts(tables).values()}
    trained = {each.verdict for name, each in verdicts.items() if name in paper.rules}
    assert not any(word.startswith(("holds", "does not")) for word in trained)
    assert not any("undecided" in word for word in arithmetic)


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_no_cell_of_a_table_is_wider_than_two_hundred_characters(path):
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert max(map(len, cells), default=0) <= 200


def test_page_head_counts_what_was_run_at_each_scale():
    head = extent("zhang", read_results(ROOT / "results", "zhang"))
    assert re.findall(r"\d[\d,]*", re.sub(r"`[^`]*`", "", head)) == ["19", "37", "3,200", "6,000", "4", "167"]
    assert re.findall(r"`(\w+)[^`]*` on `(\w+)`", head) == [
        (model, "fashion_mnist_mini") for model in ("resnet20", "alexnet_cifar", "lenet5", "vgg16_cifar", "resnet20")
    ]
    nothing = extent("zhang", {})
    assert re.findall(r"\d+", nothing) == ["0", "37"]
    assert "No experiment" in head
    assert "No experiment" in nothing


def test_page_head_does_not_hide_what_was_run_at_paper_size():
    results = dict(read_results(ROOT / "results", "paci"))
    results["accumulation"] = replace(results["accumulation"], scale="full")
    assert "1 of them at the paper's size" in extent("paci", results)


@pytest.mark.parametrize("current", every(2, [True, False]))
def test_page_names_small_scale_again_if_its_settings_have_changed(current):
    results = dict(read_results(ROOT / "results", "pipeoptim"))
    for name in ("table4_vgg16", "table4_vgg16_2bw"):
        target = ReproductionTarget(f"pipeoptim/{name}", "small")
        words = ["--multirun", f"experiment={target.experiment}", *(target.settings if current else ["threads=2"])]
        results[name] = replace(results[name], made={**results[name].made, "command": shlex.join(words)})
    text = page(PAPERS["pipeoptim"], read_tables(ROOT / "results", "pipeoptim"), results)
    assert ("`python -m papers reproduce pipeoptim/table4_vgg16`, about " in text) is not current


def test_preset_counts_in_readme_match_results():
    run = [each for name in PAPERS for each in read_results(ROOT / "results", name).values()]
    of_papers = presets_of("papers")
    text = (ROOT / "docs" / "reproduction" / "README.md").read_text(encoding="utf-8")
    assert f"{len(run)} of the {len(of_papers)} presets were run, all at the small" in text
    assert {each.scale for each in run} == {"small"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "claim", "word"),
    [
        ("pipeoptim", "sgdm_matches_gpipe", "not tested here"),
        ("pipeoptim", "sgdm_above_stashing", "undecided"),
        ("pipeoptim", "adamw_best", "not seen at small scale, 1 of 3 experiments"),
        ("pipeoptim", "larger_batches", "not tested here"),
        ("pipeoptim", "throughput_above_gpipe", "seen in part at small scale, 3 of 5 experiments, parts uncorrected"),
        ("pipemare", "cifar_matches", "not tested here"),
        ("pipemare", "warmup_closes_gap", "not seen at small scale"),
        ("pipemare", "both_recover", "not seen at small scale, 1 of 2 experiments"),
        ("timeprest", "v_staleness_free", "holds by the paper's definition"),
        ("timeprest", "time_to_accuracy", "not tested here"),
        ("pipedream", "gpipe_slower", "not tested here"),
    ],
)
def test_verdicts_say_no_more_than_the_committed_runs(paper, claim, word):
    verdicts = PAPERS[paper].judged(read_tables(ROOT / "results", paper), read_results(ROOT / "results", paper))
    assert verdicts[claim].verdict == word


@pytest.mark.parametrize(
    ("name", "what", "printed"),
    every(
        3,
        [
            ("pipemare", "CIFAR10: GPipe's utilization, N/(N + P - 1) with P = 107 and N = 8, %", "7"),
            (
                "pipemare",
                "ImageNet: weights, gradients and momentum of ResNet-50 with batch-norm statistics, MiB",
                "293",
            ),
            ("pipemare", "pipemare: power of P in its activations, with recomputation", "1.5"),
            ("pipemare", "gpipe: power of N in its activations, with recomputation", "0.5"),
            ("pipeoptim", "pipeoptim: versions of a stage's weights, most, D = 4", "2"),
            ("pipedream", "AWD LM: parameters, GB", "0.41"),
        ],
    ),
)
def test_number_without_training_is_the_printed_one(name, what, printed):
    found = {each.what: each for each in PAPERS[name].exact(read_tables(ROOT / "results", name))}
    assert found[what].printed == printed
    assert found[what].agreement is Agreement.EXACT


@pytest.mark.parametrize(
    ("paper", "experiment", "group", "printed"),
    [
        ("pipemare", "table2_cifar10", "pipedream", "94.8"),
        ("pipemare", "table3_iwslt14", "t1=false t2=true", "0.0 BLEU"),
        ("pipemare", "fig8_cifar10", "t1=true t2=true", None),
        ("zhang", "table5_resnet110", "stale_hybrid", "93.55"),
        ("zhang", "table6_resnet56", "stale", "70.25"),
    ],
)
def test_printed_quality_is_that_of_the_run_of_the_same_name(paper, experiment, group, printed):
    assert PAPERS[paper].printed(read_tables(ROOT / "results", paper), experiment).get(group) == printed


@pytest.mark.slow
def test_memory_of_deep_resnets_is_the_printed_one():
    found = {each.what: each.agreement for each in PAPERS["zhang"].exact(read_tables(ROOT / "results", "zhang"))}
    for depth in (56, 110, 224, 362):
        assert found[f"ResNet-{depth}: weights, MiB"] is Agreement.EXACT
        assert found[f"ResNet-{depth}: their increase, %"] is Agreement.EXACT
        assert found[f"ResNet-{depth}: activations of a sample, MiB"] is Agreement.OPEN


def test_verdict_on_pipedreams_optimizer_is_that_of_the_bench():
    found = json.loads((ROOT / "results" / "bench" / "planner.json").read_text(encoding="utf-8"))
    (why,) = PAPERS["pipedream"].verdicts(read_tables(ROOT / "results", "pipedream"))["optimizer_picks_best"].why
    assert found["chosen_within"] == found["groups"]
    assert f"correlate with {found['correlation']:.3f}" in why
    assert f"in all {found['groups']} groups: {len(found['pipelines'])} pipelines" in why


def test_figure_of_an_experiment_has_its_companions(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(measured_section.sweep_figure, "draw", lambda *words: drawn.append(words))
    parts = companions("table4_alexnet", read_results(ROOT / "results", "pipeoptim"))
    measured_section.draw_measured(tmp_path / "all.png", parts)
    ((path, metric, groups),) = drawn
    assert (path.name, metric) == ("all.png", "top1")
    assert {group.name: group.method for group in groups} == {
        name: name for name in ("gpipe", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim")
    }
    means = [group.mean("top1") for group in groups]
    assert means == sorted(means, reverse=True)
    assert all(len(group.course("top1")) == 30 for group in groups)


@pytest.mark.slow
def test_command_writes_page_and_figures_of_one_paper(tmp_path):
    for part in ("published/zhang", "zhang/table4_resnet20"):
        shutil.copytree(ROOT / "results" / part, tmp_path / "results" / part)
    result = support.cli.papers("pages", "zhang", "--results", "results", "-o", "pages", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "pages" / "zhang.md").is_file()
    for name in ("zhang_fig08.png", "zhang_fig09.png", "zhang_table4_resnet20.png"):
        assert (tmp_path / "pages" / "images" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_committed_slowdown_and_map_are_what_the_command_writes():
    (scale, of_one_rate), (_, tuned) = (slowdown.lines_of(ROOT / "results", tuned=each) for each in (False, True))
    for name, made in (
        ("slowdown", slowdown.page(scale, of_one_rate, tuned)),
        ("map", field_map_page.page(field_map.maps_of(ROOT / "results"))),
    ):
        committed = ROOT / "docs" / "reproduction" / f"{name}.md"
        assert committed.read_text(encoding="utf-8") == made, f"run `python -m papers pages {name}`"
