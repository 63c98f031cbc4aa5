"""`python -m papers pages`: the committed pages are what it writes."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import support.cli
from support.quick_cases import every

from papers import field_map, field_map_page, measured_section, slowdown, v_shaped
from papers.judgement import companions
from papers.pages import PAPERS
from papers.paper import read_tables
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
def test_committed_pages_of_depth_are_what_the_command_writes():
    (scale, of_one_rate), (_, tuned) = (slowdown.lines_of(ROOT / "results", tuned=each) for each in (False, True))
    for name, made in (
        ("slowdown", slowdown.page(scale, of_one_rate, tuned)),
        ("v_shaped", v_shaped.page(*v_shaped.pairs_of(ROOT / "results"))),
        ("map", field_map_page.page(field_map.maps_of(ROOT / "results"))),
    ):
        committed = ROOT / "docs" / "reproduction" / f"{name}.md"
        assert committed.read_text(encoding="utf-8") == made, f"run `python -m papers pages {name}`"
