"""What the docs show of files and of commands is what these are and print."""

import contextlib
import io
import itertools
import json
import math
import re
import runpy
import shlex
import statistics
import sys
import tomllib
from pathlib import Path

import pytest
from support.transcripts import BLOCK, Command, modules, transcripts

from papers.cli import PROGRAM
from pipetrain import cli
from pipetrain.runner.config.composition import combinations, composed

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"^`(?P<path>[\w./-]+)`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def shown_files():
    for page in PAGES:
        for match in SHOWN.finditer(page.read_text(encoding="utf-8")):
            yield pytest.param(match["path"], match["text"], id=f"{page.name}-{match['path']}")


SHORTER = {
    "README.md-0": ("pipetrain run experiment=demo dataset.limit=128", {"step 94": "step 2", "step 470": "step 10"}),
    "your-model.md-0": ("dataset.limit=512", {"step 512": "step 64", "step-00000512": "step-00000064"}),
}
"""Transcripts of long runs: what is to be added to the run, or takes the place of `make demo`, and its other steps."""


def shown_transcripts():
    for page in PAGES:
        for number, commands in enumerate(transcripts(page)):
            name = f"{page.name}-{number}"
            yield pytest.param(page, commands, id=name, marks=[pytest.mark.exhaustive] if name in SHORTER else [])
            if name in SHORTER:
                yield pytest.param(page, shortened(commands, *SHORTER[name]), id=f"{name}-shorter")


def shortened(commands, run, steps):
    """The commands, of which the first is a run over less data, and what the page would show of them."""
    first = run if commands[0].line == "make demo" else f"{commands[0].line} {run}"
    for command in commands:
        shown = "\n".join(command.shown)
        for there, here in steps.items():
            shown = shown.replace(there, here)
        yield Command(first if command is commands[0] else command.line, tuple(shown.splitlines()))


def named_commands(page):
    """The commands of ours that a page has in its blocks, and those with settings or flags in its sentences."""
    text = re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8"))
    blocks = "".join(match["text"] for match in BLOCK.finditer(text) if not match["language"])
    lines = re.findall(r"^(?:\$ )?(pipetrain [a-z].*)$", blocks, re.MULTILINE)
    inline = re.findall(r"`(pipetrain [a-z]+ [^`\n]*[=-][^`\n]*)`", text)
    return [line for line in (*lines, *inline) if "[--" not in line]


def examples(page):
    """The commands that take the settings of a run and have no placeholders, no choices to install and no output."""
    text = re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8"))
    lines = re.findall(r"^pipetrain (?:run|profile|plan|predict|timeline) .*=.*$", text, re.MULTILINE)
    return [line for line in lines if not re.search(r"METHOD|own_method|\.\.\.", line)]


@pytest.mark.parametrize(("path", "text"), list(shown_files()))
def test_file_shown_in_docs_equals_the_file(path, text):
    assert (ROOT / path).read_text(encoding="utf-8") == text


def test_page_on_adding_a_method_shows_its_files():
    assert {param.values[0] for param in shown_files()} >= {"pipetrain/engine/methods/lwp.py", "conf/method/lwp.yaml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_to_files(page):
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_named_in_docs_exist(page):
    named = re.findall(
        r"`((?:benchmarks|conf|docs|examples|papers|pipetrain|scripts|tests)/[\w./-]*)`",
        page.read_text(encoding="utf-8"),
    )
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


def test_architecture_page_shows_import_contract_layers():
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(each["layers"] for each in content["tool"]["importlinter"]["contracts"] if "layers" in each)
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "\n".join(["```", *layers, "```"]) in page


def test_architecture_page_shows_every_room_of_the_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {f"{path.parent.name}/" for path in (ROOT / "pipetrain").glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / "pipetrain").glob("*.py")} - {"__init__.py"}
    shown = set(re.findall(r"^  (\w+/|\w+\.py)", page, re.MULTILINE)) | {"__main__.py"}
    assert shown == rooms | modules


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_lead_to_headings(page):
    for target, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        assert section in headings(page.parent / target if target else page), f"{target}#{section}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_error_shown_in_docs_has_the_command_that_gives_it(page):
    errors = re.findall(r"^pipetrain: error: .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    shown = [line for commands in transcripts(page) for command in commands for line in command.shown]
    assert [error for error in errors if error not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_docs_is_one_with_flags_that_it_has(page):
    _, parsers = cli._parsers()
    for line in named_commands(page):
        _, command, *words = shlex.split(line, comments=True)
        parse = parsers[command].get_default("parse") or parsers[command].parse_args
        try:
            parse([word for word in words if word not in ("-h", "--help")])
        except SystemExit:
            pytest.fail(line)


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in examples(page)}))
def test_settings_of_an_example_in_docs_compose(line):
    """Each value of a sweep once, not with all values of the others."""
    overrides = [word for word in shlex.split(line, comments=True) if "=" in word]
    met = set()
    for combination in combinations(overrides):
        if not met.issuperset(combination):
            composed(combination)
        met.update(combination)


def test_settings_page_is_what_its_script_writes():
    script = runpy.run_path(str(ROOT / "scripts" / "write_settings_page.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run scripts/write_settings_page.py"


def test_readme_says_of_every_method_when_to_use_it():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Which method")[2].partition("\n## ")[0]
    told = {row.split("|")[1].strip("` ") for row in table.splitlines() if row.startswith("| `")}
    assert told >= {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")} - {"custom"}


@pytest.mark.parametrize("group", ["dataset", "schedule", "partition", "optimizer", "lr_schedule", "loss", "executor"])
def test_models_page_names_every_choice(group):
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    table = page.rpartition(f"| `{group}=` |")[2].partition("\n\n")[0]
    choices = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} - {"custom"}
    assert choices == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_readme_counts_the_methods_and_schedules_that_there_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    there = [
        {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} - {"custom"} for group in ("method", "schedule")
    ]
    assert re.findall(r"It has (\d+) methods\s+and (\d+) schedules", text) == [tuple(str(len(each)) for each in there)]
    table = text.partition("## Which method")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(rows[1:]) == sorted(there[0])  # the first is the head
    asynchronous = re.findall(r"^\| `(\w+)`", table.partition("**asynchronous**")[2], re.MULTILINE)
    page = (ROOT / "docs" / "other-libraries.md").read_text(encoding="utf-8")
    assert f"| asynchronous methods | {len(asynchronous)} |" in page


def test_results_on_the_methods_page_are_those_of_the_comparison():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    cells = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in page.partition("## Compared on the bundled images")[2].splitlines()
    ]
    table = itertools.takewhile(bool, itertools.dropwhile(lambda row: len(row) != 5, cells))
    rows = list(table)[2:]
    accuracies, costs, *_ = (
        (ROOT / "results" / "comparison" / "lenet5.md").read_text(encoding="utf-8").strip().split("\n\n")
    )
    named = [
        {row[0]: row[1:] for row in ([c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines())}
        for table in (accuracies, costs)
    ]
    assert len(rows) == 6
    for method, accuracy, idle, copies, staleness in rows:
        assert named[0][method][0] == accuracy
        assert (named[1][method][0], named[1][method][2], named[1][method][5]) == (idle, copies, staleness)


def numbers(page, start, end):
    """Decimals, percentages and counts on a page between some words, as they are printed."""
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    part = text.partition(start)[2].partition(end)[0]
    assert part, f"{page}: {start}"
    return re.findall(r"(?<![\w.])\d+\.\d+|\d+(?= to \d+ %| %| pipelines| groups)", part)


def measured_speed(bench):
    """The same of the page on speed."""
    resnet, alexnet, vgg = (bench[name]["ratios"] for name in ("runtime", "runtime_alexnet", "runtime_vgg16_bn"))

    def most_idle(model, *rows):
        """Of the stages of each row, in percent."""
        return sorted((f"{100 * max(bench[model]['idle'][row]):.0f}" for row in rows), key=float)

    def over_torch(ratios, *rows):
        return [f"{ratios[f'{row} / best of torch']:.1f}" for row in rows]

    flushed = ("gpipe_n2 / torch_gpipe_n2", "1f1b_flush_n2 / torch_1f1b_n2")
    gpipe = [resnet[f"gpipe_n{n} / torch_gpipe_n{n}"] for n in (2, 4, 8)]
    pairs = [f"{row} / {other}" for other in ("best of torch", "limit") for row in ("pipedream", "pipedream_auto")]
    yield "ResNet-56 in two stages", "For AlexNet", [
        *(f"{resnet[pair]:.2f}" for pair in pairs),
        f"{100 * bench['runtime']['overhead']['pipedream']:.1f}",
        *(f"{resnet[pair]:.2f}" for pair in ("pipeoptim / pipedream", "pipemare / pipedream")),
        f"{min(gpipe):.2f}", f"{max(gpipe):.2f}",
    ]  # fmt: skip
    yield (
        "For AlexNet",
        "For VGG",
        [
            *over_torch(alexnet, "pipedream", "pipeoptim", "pipemare"),
            *(f"{alexnet[pair]:.1f}" for pair in flushed),
            *(f"{alexnet[f'{row} / limit']:.2f}" for row in ("pipedream", "pipeoptim")),
            most_idle("runtime_alexnet", "pipedream", "pipeoptim")[-1],
            *most_idle("runtime_alexnet", "pipemare", "pipemare_auto"),
        ],
    )
    both = ("pipedream", "pipeoptim")
    faster = [[f"{vgg[f'{row}_auto / {row}']:.2f}" for row in rows] for rows in (both, ("pipemare",))]
    for alike in (over_torch(vgg, *both), [f"{vgg[pair]:.1f}" for pair in flushed], faster[0]):
        assert len(set(alike)) == 1  # the page gives one number for both
    yield "For VGG", "## How", [
        *over_torch(vgg, "pipedream", "pipemare"), f"{vgg[flushed[0]]:.1f}", faster[0][0], *faster[1],
        *most_idle("runtime_vgg16_bn", *both), most_idle("runtime_vgg16_bn", *(f"{row}_auto" for row in both))[-1],
    ]  # fmt: skip


def measured(bench):
    """Page, first and last words, and the numbers between them by results/bench."""
    yield from (("speed.md", *each) for each in measured_speed(bench))
    small = {name: f"{row['ratio']:.2f}" for name, row in bench["simulated"]["rows"].items()}
    methods = ("gpipe", "naive_async", "pipedream", "pipeoptim")
    yield "speed.md", "D = 32 |", "No single", [small[f"{each} {D}"] for each in methods for D in (1, 8, 16, 32)]
    yield "speed.md", "An update with", "two parts alone", [small["update muon"], small["update soap"]]
    replicas = [bench[name]["ratios"] for name in ("replicas", "replicas_alexnet")]
    pairs = ("data_parallel / ddp", "train_alone / data_parallel", "pipedream_rr / pipedream")
    yield "replicas.md", "batch 16 |", "The last row", [f"{each[pair]:.2f}" for pair in pairs for each in replicas]

    startup = bench["startup"]
    phases = [[row[phase] for phase in startup["phases"]] for row in startup["rows"].values()]
    further = [row["wall"] for row in startup["further runs of a sweep, each"].values()]
    assert list(startup["rows"]) == list(startup["further runs of a sweep, each"]) == ["distributed", "simulated"]
    yield "runtime.md", "has trained for a step", "on two quiet", [f"{sum(each[:-1]):.1f}" for each in phases]
    yield "runtime.md", "A run alone took", "Launchers", [f"{each:.1f}" for each in (*map(sum, phases), *further)]

    tables = bench["host_time"]["tables"].values()
    names = [name for name in bench["host_time"]["tables"]["fp32, N = 4"] if name != "plain"]
    ratios = [f"{each:.2f}" for name in names for table in tables if name in table for each in table[name]["ratio"]]
    yield "speed.md", "| plain, µs", "How it was measured", ratios

    goodput = bench["goodput"]
    faults = list(dict.fromkeys(row["fault"] for row in goodput["rows"]))
    yield (
        "checkpoints.md",
        "every 48 steps |",
        "These are",
        [
            number
            for row in sorted(goodput["rows"], key=lambda row: faults.index(row["fault"]))
            for number in (f"{100 * row['kept_share'][0]:.0f}", f"{row['seconds'][0]:.1f}")
        ],
    )
    found = goodput["young"]
    seconds = [f"{found[name]:.2f}" for name in ("checkpoint_cost_s", "checkpoint_pause_s")]
    between = [f"{found[name]:.1f}" for name in ("between_failures_s", "interval_s")]
    yield "checkpoints.md", "one every 16 steps.", "not contradict it", [*seconds, *between, f"{found['step_s']:.2f}"]

    planner = bench["planner"]
    (within,) = {f"{planner[f'correlation_{model}']:.2f}" for model in ("lenet5", "resnet20")}
    yield "planner.md", "`make bench-planner` predicts", "and then", [str(len(planner["pipelines"]))]
    yield "planner.md", "correlate with", "The largest errors", [
        f"{planner['correlation']:.3f}", within, f"{planner['correlation_alexnet_cifar']:.2f}",
        f"{math.ceil(planner['rate_off_median'] * 100)}",
    ]  # fmt: skip
    assert planner["chosen_within"] == planner["groups"]
    slower = f"{100 * (1 - planner['chosen_of_best']):.0f}"
    yield "planner.md", "cut with the best prediction", "slower than it", ["5", str(planner["groups"]), slower]


def test_figures_in_docs_are_those_of_the_benchmarks():
    bench = {path.stem: json.loads(path.read_text()) for path in (ROOT / "results" / "bench").glob("*.json")}
    for page, start, end, expected in measured(bench):
        assert numbers(page, start, end) == expected, f"{page}: {start}"
    for row in bench["loading"]["rows"].values():
        workers = [row[f"workers={number}"] for number in (0, 1, 2)]
        loader, both = (", ".join(f"{each[column]:,}" for each in workers) for column in ("loader", "both"))
        stage = f"{statistics.mean(each['stage'] for each in workers):.0f}"
        assert f"| {loader} | {stage} | {both} |" in (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")


def test_figures_of_examples_are_those_of_their_stored_output():
    tuning, plain = (
        (ROOT / "results" / "examples" / name).read_text(encoding="utf-8") for name in ("tuning.txt", "plain_gpt.txt")
    )
    tables = tuning.split("$ ")
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    assert tables[2].split("name: optuna")[0].partition("\n")[2].strip() in page
    best, reached = re.search(r"lr=(\S+)\s+(\S+)", tables[1]).groups()
    assert f"`pipedream` reached {float(reached):.1f} % at {float(best):.4f}" in page
    loop, gpipe = re.findall(r"\| (\d+\.\d+) \|", plain)
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    assert f"| a plain loop | 1 | {loop} |" in page
    assert f"| `method=gpipe train.microbatches=4` | 2 | {gpipe} |" in page


@pytest.mark.slow
@pytest.mark.parametrize(("page", "commands"), list(shown_transcripts()))
def test_transcript_in_docs_is_what_the_commands_print(page, commands, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, text in modules(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        monkeypatch.setitem(sys.modules, name.removesuffix(".py"), None)
        del sys.modules[name.removesuffix(".py")]  # imported anew, and forgotten after the test
    for command in commands:
        code, output = printed(command, tmp_path)
        assert command.shows(output), f"$ {command.line}\n{output}"
        assert (code != 0) == command.refused, f"$ {command.line}\n{output}"


@pytest.mark.parametrize(
    ("output", "equal"),
    [
        ("writing to outputs\nstage 0 is idle\ncompleted after 10 steps, 1 min 2 s, 98.5 samples/s\n", True),
        ("stage 0 is idle\ncompleted after 10 steps, 62.1 s (checkpoints 2.6 s), 9,850 samples/s\n", True),
        ("completed after 10 steps, 1 min 2 s, 98.5 samples/s\n", False),
        ("stage 0 is idle\ncompleted after 11 steps, 1 min 2 s, 98.5 samples/s\n", False),
    ],
)
def test_only_measured_numbers_of_transcript_may_vary(output, equal):
    shown = ("...", "stage 0  is idle", "completed after 10 steps, 0.5 s, 2,607 samples/s")
    assert Command("pipetrain run model=lenet5", shown).shows(output) == equal


@pytest.mark.parametrize(
    ("output", "equal"),
    [
        ("final  loss 0.41  top1 86.1  (also the best)\n", True),
        ("final  loss 0.41  top1 86.1\nbest   loss 0.41  top1 86.2\n", True),
        ("final  loss 0.41  top1 86.1\n", False),
    ],
)
def test_last_transcript_evaluation_may_be_best_or_precede_it(output, equal):
    shown = ("final  loss 0.3834  top1 86.65  (also the best)",)
    assert Command("make demo", shown).shows(output) == equal


def printed(command: Command, folder: Path) -> tuple[int, str]:
    """The exit code of a documented command, and what it prints, standard output and error together."""
    line = "pipetrain run experiment=demo" if command.line == "make demo" else command.line
    words = shlex.split(line.removeprefix("python -m "))
    program = {"pipetrain": cli.PIPETRAIN, "papers": PROGRAM}[words[0]]
    here = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(here), contextlib.redirect_stderr(here):
        code = cli.carry_out(words[1:], program)
    return code, here.getvalue()


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
