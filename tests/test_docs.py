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
from omegaconf import OmegaConf
from support.transcripts import BLOCK, Command, modules, transcripts

import pipetrain
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


def test_citation_names_the_version_and_license_of_the_package():
    citation = OmegaConf.load(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (citation["version"], citation["license"]) == (pipetrain.__version__, project["license"])


def test_readme_says_of_every_method_when_to_use_it():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Which method")[2].partition("\n## ")[0]
    told = {row.split("|")[1].strip("` ") for row in table.splitlines() if row.startswith("| `")}
    assert told >= {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")} - {"custom"}


@pytest.mark.parametrize("group", ["schedule", "partition", "optimizer", "lr_schedule", "executor"])
def test_choices_page_names_every_choice(group):
    page = (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{group}` |"))
    choices = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} - {"custom"}
    assert choices <= set(re.findall(r"`(\w+)`", row))


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


def sentences_on_speed(bench, ratios):
    resnet, alexnet, vgg = (ratios[name] for name in ("runtime", "runtime_alexnet", "runtime_vgg16_bn"))
    gpipe = [resnet[f"gpipe_n{n} / torch_gpipe_n{n}"] for n in (2, 4, 8)]
    yield "speed.md", f"`pipedream` processed {resnet['pipedream / best of torch']:.2f} times as many samples"
    yield "speed.md", f"{resnet['pipedream_auto / best of torch']:.2f} times as many with `partition=auto`"
    shares = [resnet[f"{row} / limit"] for row in ("pipedream", "pipedream_auto")]
    yield "speed.md", f"It reached {shares[0]:.2f} of its limit"
    yield "speed.md", f"and {shares[1]:.2f} with `partition=auto`. Messages and Python took"
    yield "speed.md", f"Python took {bench['runtime']['overhead']['pipedream']:.1%} of the time".replace("%", " %")
    yield "speed.md", f"`pipeoptim` ran at {resnet['pipeoptim / pipedream']:.2f} times the speed of `pipedream`"
    yield "speed.md", f"and `pipemare` at {resnet['pipemare / pipedream']:.2f} times"
    yield "speed.md", f"`gpipe` ran at {min(gpipe):.2f} to {max(gpipe):.2f} times the speed of torch's"
    of_torch = {row: f"{alexnet[f'{row} / best of torch']:.1f}" for row in ("pipedream", "pipeoptim", "pipemare")}
    yield "speed.md", f"`pipedream` processed {of_torch['pipedream']} times as many samples per second as the faster"
    yield "speed.md", f"`pipeoptim` {of_torch['pipeoptim']} times and `pipemare` {of_torch['pipemare']} times as many"
    flushed = ("gpipe_n2 / torch_gpipe_n2", "1f1b_flush_n2 / torch_1f1b_n2")
    own = (alexnet[pair] for pair in flushed)
    yield "speed.md", "`gpipe` {:.1f} times and `1f1b_flush` {:.1f} times as many as torch's own".format(*own)
    shares = [alexnet[f"{row} / limit"] for row in ("pipedream", "pipeoptim")]
    yield "speed.md", "ran at {:.2f} and {:.2f} times their limit".format(*shares)
    idle = bench["runtime_alexnet"]["idle"]
    most = max(share for row in ("pipedream", "pipeoptim") for share in idle[row])
    yield "speed.md", f"idle for {most:.0%} of the time at most. `partition=auto` makes the same".replace("%", " %")
    idle = sorted(max(idle[row]) for row in ("pipemare", "pipemare_auto"))
    yield "speed.md", f"idle for {100 * idle[0]:.0f} to {idle[1]:.0%} of the time,".replace("%", " %")

    (times,) = {f"{vgg[f'{row} / best of torch']:.1f}" for row in ("pipedream", "pipeoptim")}
    yield "speed.md", f"`pipeoptim` processed {times} times as many samples per second as the faster of torch's"
    yield "speed.md", f"and `pipemare` {vgg['pipemare / best of torch']:.1f} times as many; `gpipe` and `1f1b_flush`"
    (times,) = {f"{vgg[pair]:.1f}" for pair in flushed}
    yield "speed.md", f"`gpipe` and `1f1b_flush` {times} times as many as torch's own"
    (times,) = {f"{vgg[f'{row}_auto / {row}']:.2f}" for row in ("pipedream", "pipeoptim")}
    faster = f"ran {times} times as fast, and `pipemare` {vgg['pipemare_auto / pipemare']:.2f} times"
    yield "speed.md", f"With `partition=auto`, `pipedream` and `pipeoptim` {faster}"
    idle = bench["runtime_vgg16_bn"]["idle"]
    of_even, of_auto = (sorted(max(idle[f"{row}{end}"]) for row in ("pipedream", "pipeoptim")) for end in ("", "_auto"))
    yield "speed.md", f"was idle for {100 * of_even[0]:.0f} to {of_even[1]:.0%} of the time".replace("%", " %")
    yield "speed.md", f"those of `partition=auto` for {of_auto[1]:.0%} at most".replace("%", " %")


def measured_sentences():
    """Pages, and what they have to say by the measurements in results/bench."""
    bench = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "results" / "bench").glob("*.json")
    }
    ratios = {name: each["ratios"] for name, each in bench.items() if "ratios" in each}
    yield from sentences_on_speed(bench, ratios)

    small = {name: row["ratio"] for name, row in bench["simulated"]["rows"].items()}
    for method in ("gpipe", "naive_async", "pipedream", "pipeoptim"):
        yield (
            "speed.md",
            f"| `{method}` | " + " | ".join(f"{small[f'{method} {D}']:.2f}" for D in (1, 8, 16, 32)) + " |",
        )
    yield "speed.md", f"`optimizer=muon` took {small['update muon']:.2f} times as long"
    yield "speed.md", f"`optimizer=soap` {small['update soap']:.2f} times as"

    replicas = [ratios["replicas"], ratios["replicas_alexnet"]]
    for words, ratio in (
        ("`data_parallel` with two replicas / DistributedDataParallel", "data_parallel / ddp"),
        ("`pipedream` with `[2,1]` / without replicas", "pipedream_rr / pipedream"),
    ):
        yield "replicas.md", f"| {words} | " + " | ".join(f"{each[ratio]:.2f}" for each in replicas) + " |"

    for row in bench["loading"]["rows"].values():
        workers = [row[f"workers={number}"] for number in (0, 1, 2)]
        loader, both = (", ".join(f"{each[column]:,}" for each in workers) for column in ("loader", "both"))
        yield "your-own.md", f"| {loader} | {statistics.mean(each['stage'] for each in workers):.0f} | {both} |"

    first, whole = {}, {}
    for executor, row in bench["startup"]["rows"].items():
        phases = [row[phase] for phase in bench["startup"]["phases"]]
        first[executor], whole[executor] = sum(phases[:-1]), sum(phases)
    later = {executor: row["wall"] for executor, row in bench["startup"]["further runs of a sweep, each"].items()}
    for words, end in (
        ("has trained for a step {} s after Enter, simulated {} s", first),
        ("A run alone took {} s from Enter to its end, simulated {} s", whole),
        ("each further run of a sweep {} s, simulated {} s", later),
    ):
        yield "runtime.md", words.format(*(f"{end[executor]:.1f}" for executor in ("distributed", "simulated")))

    planner = bench["planner"]
    yield "planner.md", f"predicts {len(planner['pipelines'])} pipelines"
    yield "planner.md", f"correlate with {planner['correlation']:.3f} over all"
    (within,) = {f"{planner[f'correlation_{model}']:.2f}" for model in ("lenet5", "resnet20")}
    yield "planner.md", f"within a model with {within} (LeNet-5 and ResNet-20) and"
    yield "planner.md", f"{planner['correlation_alexnet_cifar']:.2f} (AlexNet)"
    yield "planner.md", f"are off by less than {math.ceil(planner['rate_off_median'] * 100)} %"
    assert planner["chosen_within"] == planner["groups"]
    yield "planner.md", f"within 5 % of the best one measured in all {planner['groups']} groups"
    slower = f"{1 - planner['chosen_of_best']:.0%}".replace("%", " %")
    yield "planner.md", f"and at most {slower} slower than it"


def test_figures_in_docs_are_those_of_the_benchmarks():
    text = {page.name: " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert [(page, words) for page, words in measured_sentences() if words not in text[page]] == []


def test_figures_of_examples_are_those_of_their_stored_output():
    tuning, plain = (
        (ROOT / "results" / "examples" / name).read_text(encoding="utf-8") for name in ("tuning.txt", "plain_gpt.txt")
    )
    tables = tuning.split("$ ")
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
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
