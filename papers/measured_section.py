"""The section of a paper's page with the measurements of its experiments, next to the printed numbers."""

import csv
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from papers.judgement import companions
from papers.paper import Paper, Tables
from papers.presets import preset
from papers.results import Measured, MeasuredGroup, Results, untimed
from papers.targets import SMALL, ReproductionTarget
from pipetrain.engine.files.strict_json import number
from pipetrain.reporting.sweep import sweep_figure
from pipetrain.reporting.sweep.columns import column_of
from pipetrain.reporting.sweep.compared_run import ComparedRun, Point
from pipetrain.reporting.sweep.comparison import ComparedGroups, ranked
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.runner.config.choices import choice_of
from pipetrain.runner.terminal.text_table import counted, markdown_table, size_of
from pipetrain.runner.tracking.throughput import MEASURED, PREDICTED

Block = Sequence[str]
Cells = tuple[str, ...]
_INTRODUCTION = (
    "Means and sample standard deviations over seeds. The column `paper` has the paper's numbers, for its own network "
    "and data. {0}The small scale has the paper's methods, and its number of stages unless listed as changed, with a "
    "smaller model and less data, so the numbers differ from the paper's; their order may not. It trains for a few "
    "epochs, which puts methods that begin with small steps at a disadvantage, such as PipeMare with T1. For "
    "translation and language models, top1 counts words. Throughput marked with ~ is that of a simulated pipeline, "
    "predicted from the measured times of its stages."
)

_BEST = "Like the paper's tables, these use the best evaluation of each run, not the last. "
_UNTIMED = ", shared with other work, so times and throughput are left out"
_QUIET = "; on an idle machine it takes about {0}"
_OUTDATED = " These runs are from before the small scale was changed to the settings that the command now has."
_BLEU = " BLEU"


def measured_section(paper: Paper, tables: Tables, results: Results) -> Iterator[Block]:
    """The blocks of the section; none where nothing was measured.

    Args:
        paper: whose experiments they are.
        tables: its printed numbers.
        results: what was measured.
    """
    if not results:
        return
    yield ["## Measured"]
    yield [_INTRODUCTION.format(_BEST if paper.best else "")]
    for parts in experiments(results):
        yield from _experiment(paper, paper.printed(tables, parts[0].experiment), parts)


def experiments(results: Results) -> Iterator[Sequence[Measured]]:
    """Each experiment with its companions, in the order of their names."""
    for name in sorted(results):
        if not any(name.startswith(f"{other}_") for other in results):
            yield companions(name, results)


def figure_of(paper: Paper, parts: Sequence[Measured]) -> str:
    """The file name of the figure of an experiment and its companions."""
    return f"{paper.name}_{parts[0].experiment}.png"


def _experiment(paper: Paper, printed: Mapping[str, str], parts: Sequence[Measured]) -> Iterator[Block]:
    made = preset(f"{paper.name}/{parts[0].experiment}")
    yield [f"### {made.summary}"]
    yield [f"{made.remarks['paper']}. {_made(paper, parts)}"]
    if parts[0].scale == SMALL:
        yield [_changed(parts[0])]
    metric = parts[0].metric
    in_bleu = any(text.endswith(_BLEU) for text in printed.values()) and metric != "bleu"
    if in_bleu:
        yield [f"The paper prints BLEU; ours is the {metric} of words, on another scale."]
    yield _table(printed, parts, best=paper.best, in_bleu=in_bleu)
    shown = f"{metric} by epoch, and costs" if metric else "costs"
    yield [f"![{parts[0].experiment}: {shown}](images/{figure_of(paper, parts)})"]


def _changed(measured: Measured) -> str:
    """Data of the small scale, and all settings in which it differs from the preset."""
    changed = f"Changed for the small scale: `{shlex.join(measured.changes)}`."
    data, network = measured.changed("dataset"), measured.network
    if data is None:
        return changed
    what = f"`{network}` on" if network else "On"
    summary = choice_of("dataset", data).summary
    return f"{what} `{measured.data}`: {summary}{'' if summary.endswith('?') else '.'} {changed}"


def _made(paper: Paper, parts: Sequence[Measured]) -> str:
    commands = " and ".join(
        f"`python -m papers reproduce {paper.name}/{part.experiment} --scale {part.scale}`" for part in parts
    )
    seconds = sum(part.made["wall_s"] for part in parts)
    runs = counted(sum(part.made["runs"] for part in parts), "run", "runs")
    machine = parts[0].made["made_with"]
    timed = all(part.made.get("timed", True) for part in parts)
    announced = sum(ReproductionTarget(f"{paper.name}/{part.experiment}", SMALL).minutes for part in parts)
    outdated = any(part.outdated for part in parts)
    longer = parts[0].scale == SMALL and not outdated and seconds / 60 > announced
    quiet = _QUIET.format(_minutes(announced)) if longer else ""
    shared = "" if timed else _UNTIMED + quiet
    cores = counted(machine["cores"], "core", "cores")
    took = f"{runs}, {_minutes(seconds / 60)} on {cores} ({machine['cpu']}){shared}"
    return f"{commands}: {took}.{_OUTDATED if outdated else ''}"


def _minutes(count: float) -> str:
    return counted(max(1, round(count)), "minute", "minutes")


def _table(printed: Mapping[str, str], parts: Sequence[Measured], *, best: bool, in_bleu: bool) -> list[str]:
    metric = parts[0].metric
    if metric and best:
        metric = f"best_{metric}"
    rows = [
        (
            group.name,
            printed.get(group.name, "").removesuffix(_BLEU),
            _mean(group, metric) if metric else "",
            _target(group),
            _steps(group),
            _throughput(group),
            f"{group.means['idle_share']:.0%}" if "idle_share" in group.means else "",
            size_of(group.means["weight_bytes"]) if "weight_bytes" in group.means else "",
            size_of(group.means["activation_bytes"]) if "activation_bytes" in group.means else "",
            size_of(group.means["stage_bytes"]) if "stage_bytes" in group.means else "",
            ", ".join(f"{count} {status}" for status, count in sorted(group.ended.items())),
        )
        for part in parts
        for group in part.groups
    ]
    heads = (
        "",
        "paper, BLEU" if in_bleu else "paper",
        column_of(metric).head if metric else "metric",
        column_of("target_epochs").head,
        column_of("loss_steps").head,
        "samples/s",
        "idle",
        "weights",
        "activations",
        column_of("stage_bytes").head,
        "runs",
    )
    return markdown_table(*_without_empty(heads, rows))


def _without_empty(heads: Cells, rows: Sequence[Cells]) -> tuple[Cells, list[Cells]]:
    """The columns that have anything; the names always."""
    kept = [index for index in range(len(heads)) if not heads[index] or any(row[index] for row in rows)]
    return tuple(heads[index] for index in kept), [tuple(row[index] for index in kept) for row in rows]


def _mean(group: MeasuredGroup, metric: str) -> str:
    if metric not in group.means:
        return ""
    decimals = 3 if metric.endswith("loss") else 2
    spread = f" ± {group.deviations[metric]:.{decimals}f}" if metric in group.deviations else ""
    return f"{group.means[metric]:.{decimals}f}{spread}"


def _target(group: MeasuredGroup) -> str:
    """Epochs to the target, and how many runs reached it if some did not."""
    if not 0 < group.reached < group.conclusive:
        return _mean(group, "target_epochs")
    return f"{group.means['target_epochs']:.2f} ({group.reached} of {group.conclusive})"


def _steps(group: MeasuredGroup) -> str:
    """Mean number of steps to the baseline's loss, and how many runs reached it if some did not."""
    reached = sum("loss_steps" in run for run in group.by_seed.values())
    some = f" ({reached} of {group.conclusive})" if reached < group.conclusive else ""
    return f"{group.means['loss_steps']:.0f}{some}" if reached else ""


def _throughput(group: MeasuredGroup) -> str:
    signs = {MEASURED: "", PREDICTED: "~"}
    found = [f"{sign}{_rate(group.means[name])}" for name, sign in signs.items() if name in group.means]
    return found[0] if found else ""


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw_measured(path: Path, parts: Sequence[Measured]) -> None:
    """Draws the runs of all parts as one sweep, ranked by the metric of the first."""
    groups = [group for part in parts for group in _groups(part)]
    available = {name for group in groups for run in group.runs for name in run.values}
    metric = parts[0].metric
    compared = ranked(ComparedGroups(groups), metric if metric in available else None)
    sweep_figure.draw(path, compared.metric, compared.groups)


def _groups(part: Measured) -> list[SweepGroup]:
    with (part.folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        methods = {row["name"]: row["method"] for row in csv.DictReader(file)}
    groups = groups_from_json(json.loads((part.folder / "sweep.json").read_text(encoding="utf-8")), methods)
    if part.made.get("timed", True):
        return groups
    return [replace(group, runs=[untimed(run) for run in group.runs]) for group in groups]


_NO_NUMBERS = {
    "path", "status", "reason", "seed", "counts", "started_at", "final", "best", "forward_staleness", "curves"
}  # fmt: skip
"""Keys of a run in JSON that are not numbers."""


def groups_from_json(content: Mapping[str, Any], methods: Mapping[str, str]) -> list[SweepGroup]:
    """Groups in `sweep.json`, as far as it contains them; `methods` are the methods of groups, by name."""
    return [
        SweepGroup(group["name"], [_run(run, methods.get(group["name"], "")) for run in group["runs"]])
        for group in content["groups"]
    ]


def _run(kept: Mapping[str, Any], method: str) -> ComparedRun:
    return ComparedRun(
        path=Path(kept["path"]),
        status=kept["status"],
        reason=kept["reason"],
        settings={"method": method, "seed": kept["seed"]},
        final=_numbers(kept["final"]),
        best=_numbers(kept["best"]),
        numbers=_numbers({name: value for name, value in kept.items() if name not in _NO_NUMBERS}),
        started_at=kept.get("started_at", ""),
        staleness=kept["forward_staleness"],
        curves={
            name: [Point(epoch, number(value), *more) for epoch, value, *more in points]
            for name, points in kept["curves"].items()
        },
    )


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: number(value) for name, value in values.items()}
