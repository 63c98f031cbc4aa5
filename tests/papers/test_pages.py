"""`python -m papers pages`: the committed pages, figures and tables are what it writes."""

import csv
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import support.cli
from support.quick_cases import every

from papers import field_map_page, overview, slowdown, v_shaped
from papers.evidence import tables_of, verdict_rows
from papers.pages import write_pages
from papers.paper import read_tables
from papers.paper_page import extent, holds, page, sentence
from papers.publications import PAPERS
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


def rows_in(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers())
def test_committed_page_and_tables_are_what_the_command_writes(paper):
    tables, results = read_tables(ROOT / "results", paper.name), read_results(ROOT / "results", paper.name)
    claims = paper.claims(tables, results)
    made = page(paper, tables, results, claims)
    committed = ROOT / "docs" / "reproduction" / f"{paper.name}.md"
    assert committed.read_text(encoding="utf-8") == made, f"run `python -m papers pages {paper.name}`"
    for name, rows in tables_of(paper, tables, results, claims).items():
        kept = [list(row.values()) for row in rows_in(ROOT / "results" / paper.name / name)]
        assert kept == [[str(value) for value in row.values()] for row in rows], name
    verdicts = paper.judged(tables, results)
    assert verdicts.keys() <= {row["name"] for row in tables["claims"].rows}
    assert all(VERDICTS.fullmatch(each.verdict) for each in verdicts.values())
    arithmetic = {each.verdict for each in paper.verdicts(tables).values()}
    trained = {each.verdict for name, each in verdicts.items() if name in paper.rules}
    assert not any(word.startswith(("holds", "does not")) for word in trained)
    assert not any("undecided" in word for word in arithmetic)
    words = {claim.row["name"]: claim.verdict.verdict for claim in claims}
    assert all(holds(finding.claims, words) for finding in paper.findings)


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_table_of_verdicts_has_each_claim_of_the_page_and_all_evidence(paper):
    rows = rows_in(ROOT / "results" / paper.name / "verdicts.csv")
    text = (ROOT / "docs" / "reproduction" / f"{paper.name}.md").read_text(encoding="utf-8")
    claims = {int(row["claim"]): row for row in rows}
    assert list(claims) == list(range(1, len(read_tables(ROOT / "results", paper.name)["claims"].rows) + 1))
    for number, row in claims.items():
        bold = "" if row["verdict"] == "not tested here" else "**"
        _, found, why = text.partition(f"| {number} | {row['text']} ({row['source']}) | {bold}{row['verdict']}{bold} |")
        assert found
        assert why.partition("|")[0].strip()
    assert {row["evidence"] for row in rows if row["part"] == "also tried"} == {
        f"also tried: {line}" for line in paper.tried.values()
    }
    for row in rows:
        if row["gain"]:
            low, gain, high = (float(row[name]) for name in ("low", "gain", "high"))
            assert low <= gain <= high


def test_rows_of_evidence_have_the_numbers_of_their_lines():
    paper, results = PAPERS["paci"], read_results(ROOT / "results", "paci")
    claims = paper.claims(read_tables(ROOT / "results", "paci"), results)
    rows = [row for row in verdict_rows(paper, results, claims) if row["claim"] == 3]
    assert [row["part"] for row in rows] == ["not seen", "also tried"]
    seen = rows[0]
    assert (seen["network"], seen["data"]) == ("gpt layers=4 width=64 heads=4", "austen")
    assert (seen["first"], seen["other"], seen["metric"]) == ("microbatches=8", "pipedream_flush", "perplexity")
    numbers = {name: f"{float(seen[name]):.2f}" for name in ("gain", "low", "high", "limit")}
    ends = "gain {gain}, 95 % {low} to {high}, paired, 3 seeds, margin {limit}".format(**numbers)
    assert seen["evidence"].endswith(ends.replace("margin -", "margin "))
    assert sentence(claims[2]).endswith("gain {gain} ({low} to {high})".format(**numbers))


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_pages_are_short_and_show_committed_figures_alone(path):
    text = path.read_text(encoding="utf-8")
    assert len([word for word in text.split() if re.search(r"\w", word)]) < 1600
    shown = re.findall(r"!\[[^\]]*\]\((images/[^)]+)\)", text)
    assert shown
    assert all((path.parent / name).is_file() for name in shown)


def test_every_committed_figure_is_shown_small_and_scalable():
    images = ROOT / "docs" / "reproduction" / "images"
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert all(f"images/{path.name}" in text for path in images.iterdir())
    assert {path.suffix for path in images.iterdir()} == {".svg"}
    assert max(path.stat().st_size for path in images.iterdir()) < 120_000
    assert all(
        "DATE" not in (drawn := path.read_text()).upper()[:2000] and "<text" in drawn for path in images.iterdir()
    )


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
def test_small_scale_is_named_again_if_its_settings_have_changed(current):
    results = dict(read_results(ROOT / "results", "pipeoptim"))
    for name in ("table4_vgg16", "table4_vgg16_2bw"):
        target = ReproductionTarget(f"pipeoptim/{name}", "small")
        words = ["--multirun", f"experiment={target.experiment}", *(target.settings if current else ["threads=2"])]
        results[name] = replace(results[name], made={**results[name].made, "command": shlex.join(words)})
    paper = PAPERS["pipeoptim"]
    rows = verdict_rows(paper, results, paper.claims(read_tables(ROOT / "results", "pipeoptim"), results))
    told = [row["evidence"].startswith("`python -m papers reproduce pipeoptim/table4_vgg16`, about ") for row in rows]
    assert any(told) is not current


def test_preset_counts_in_readme_match_results():
    run = [each for name in PAPERS for each in read_results(ROOT / "results", name).values()]
    of_papers = presets_of("papers")
    text = (ROOT / "docs" / "reproduction" / "README.md").read_text(encoding="utf-8")
    assert f"{len(run)} of the {len(of_papers)} presets were run, all at the small" in text
    assert {each.scale for each in run} == {"small"}


@pytest.mark.slow
def test_command_writes_page_figures_and_tables_of_one_paper(tmp_path):
    for part in ("published/zhang", "zhang/table4_resnet20"):
        shutil.copytree(ROOT / "results" / part, tmp_path / "results" / part)
    result = support.cli.papers("pages", "zhang", "--results", "results", "-o", "pages", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "pages" / "zhang.md").is_file()
    images = ("zhang_fig08", "zhang_fig09", "zhang_table4_resnet20", "verdicts")
    assert {path.name for path in (tmp_path / "pages" / "images").iterdir()} == {f"{name}.svg" for name in images}
    written = {path.name for path in (tmp_path / "results" / "zhang").glob("*.csv")}
    assert written == {"verdicts.csv", "measured.csv", "numbers.csv"}


@pytest.mark.slow
def test_committed_figures_are_what_the_command_draws(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("*.html", "*.png"))
    names = [name for name in PAPERS if name != "zhang"]
    images = [path for path in write_pages(names, tmp_path / "results", tmp_path) if path.suffix == ".svg"]
    assert len(images) > 50
    for path in images:
        assert path.read_bytes() == (ROOT / "docs" / "reproduction" / "images" / path.name).read_bytes(), path.name


def test_figure_of_an_experiment_has_its_companions(monkeypatch, tmp_path):
    drawn = {}

    def draw(path, name, axis, courses, titles):
        drawn[path.name] = (name, axis), courses, titles

    monkeypatch.setattr("papers.pages.draw_courses", draw)
    monkeypatch.setattr("papers.pages.tables_of", lambda *_: {})
    monkeypatch.setattr("papers.pages.page", lambda *_: "")
    monkeypatch.setattr("papers.pages.draw_forest", lambda *_: False)
    list(write_pages(["pipeoptim"], ROOT / "results", tmp_path))
    curve, courses, titles = drawn["pipeoptim_table4_alexnet.svg"]
    assert curve == ("top1", "epoch")
    names = {"gpipe", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim"}
    assert {course.name for course in courses} == names
    assert all(len(course.points) == 30 and not course.lost for course in courses)
    assert next(course.label for course in courses if course.name == "pipeoptim") == "87.46 ± 0.63"
    assert titles[1].startswith("table4_alexnet, small scale: lenet5 on fashion_mnist_mini, 8 seeds")


def test_overview_has_a_mark_for_each_claim(tmp_path):
    stored = [(paper.short, overview.stored_verdicts(ROOT / "results", name)) for name, paper in PAPERS.items()]
    overview.draw(tmp_path / "a.svg", stored)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text.count("<title>") == sum(len(verdicts) for _, verdicts in stored) == 102
    assert text == (ROOT / "docs" / "reproduction" / "images" / overview.FIGURE).read_text(encoding="utf-8")


@pytest.mark.slow
def test_committed_pages_of_depth_are_what_the_command_writes(tmp_path):
    for name in ("map", "slowdown"):
        shutil.copytree(ROOT / "results" / name, tmp_path / name)
    (tmp_path / "images").mkdir()
    for module in (field_map_page, slowdown, v_shaped):
        for path in module.write(tmp_path, tmp_path):
            kept = ROOT / "results" if path.suffix == ".csv" else ROOT / "docs" / "reproduction"
            committed = kept / path.relative_to(tmp_path)
            assert committed.read_bytes() == path.read_bytes(), f"run `python -m papers pages {module.NAME}`"
