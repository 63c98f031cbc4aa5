"""Tables that runs and evaluations print."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.failure import relative_to_cwd
from pipetrain.report.text_table import (
    both_ends,
    counted,
    number_list,
    rate_of,
    shortened,
    size_of,
    text_lines,
    text_table,
)
from pipetrain.tracking.records import format_metric
from pipetrain.tracking.throughput import MEASURED, PREDICTED, SIMULATOR, in_tokens

if TYPE_CHECKING:
    from pipetrain.planner.run_plan import Plan, StagePlan
    from pipetrain.run.finished.evaluate import Evaluation


_WIDTH = 100
"""Width of tables in columns if there is no terminal."""
Metrics = Mapping[str, float | None]
_LEAST_LABEL, _MOST_LABEL = 8, 60
_SHOWN_S = 0.05
"""Shorter times would round to 0.0 s and are left out."""


def plan_table(plan: "Plan", devices: Sequence[str]) -> list[str]:
    """A line for each stage: its layers, parameters, share of the estimated time, and device; fits the terminal."""
    total = sum(stage.estimated_seconds for stage in plan.stages) or 1.0
    rows = [
        (
            str(r),
            _range(stage),
            stage.labels,
            f"{stage.parameters:,}",
            f"{100 * stage.estimated_seconds / total:.1f} %",
            device,
        )
        for r, (stage, device) in enumerate(zip(plan.stages, devices, strict=True))
    ]
    heads = ("stage", "layers", "", "parameters", "est. time", "device")
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    for width in range(_MOST_LABEL, _LEAST_LABEL - 1, -1):
        labeled = [(*row[:2], _labels(row[2], width), *row[3:]) for row in rows]
        table = text_table(heads, both_ends(labeled, "stages, in plan.json"), "><<>><")
        if max(map(len, table)) <= columns:
            break
    return table


def _range(stage: "StagePlan") -> str:
    if stage.first == stage.last:
        return "-"
    return str(stage.first) if stage.last == stage.first + 1 else f"{stage.first}-{stage.last - 1}"


def _labels(labels: Sequence[str], width: int) -> str:
    """The first and the last label, each at most `width` wide."""
    ends = [labels[0], labels[-1]] if len(labels) > 1 else labels
    return " to ".join(shortened(label, width) for label in ends)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The few lines that a run ends with: how it went, its metrics, and what was measured of each stage."""
    lines = [*_outcome(summary), *_target_lines(summary)]
    lines += _metric_lines(summary.get("final"), summary.get("best"))
    if any("forward_staleness" in stage for stage in summary["per_stage"]):
        lines += _stage_table(summary["per_stage"])
    return lines


def _outcome(summary: Mapping[str, Any]) -> list[str]:
    text = f"{summary['status']} after {counted(summary['steps'], 'step', 'steps')}, {_duration(summary['wall_s'])}"
    parts = (("evaluation", summary.get("eval_s")), ("checkpoints", summary.get("checkpoint_s")))
    if apart := [f"{what} {_duration(spent)}" for what, spent in parts if spent and spent >= _SHOWN_S]:
        text += f" ({', '.join(apart)})"
    if speed := _speed(summary, MEASURED):
        return [f"{text}, {speed}"]
    lines = [f"{text}, simulated at {speed}" if (speed := _speed(summary, SIMULATOR)) else text]
    if speed := _speed(summary, PREDICTED):
        lines.append(f"as a pipeline {speed}, predicted from the measured times of the stages")
    return lines


def _speed(summary: Mapping[str, Any], name: str) -> str | None:
    """A throughput in tokens if the run counts them, else in samples; None if unknown."""
    if tokens := summary.get(in_tokens(name)):
        return f"{rate_of(tokens)} tokens/s"
    return f"{rate_of(samples)} samples/s" if (samples := summary.get(name)) else None


def _target_lines(summary: Mapping[str, Any]) -> list[str]:
    if not (wanted := summary.get("target_metrics")):
        return []
    shown = f"train.target={{{', '.join(f'{name}: {value}' for name, value in wanted.items())}}}"
    if (target := summary.get("target")) is None:
        return [f"{shown} was not reached"]
    return [f"{shown} was reached at step {target['step']}, epoch {target['epoch']}, {_duration(target['wall_s'])}"]


def next_steps(run: Path, *, traced: bool) -> str:
    """A line of commands that look at a run."""
    commands = [f"tensorboard --logdir {relative_to_cwd(run)}", f"pipetrain report runs {relative_to_cwd(run.parent)}"]
    if traced:
        commands.append(f"pipetrain timeline {relative_to_cwd(run)}")
    return f"next: {', '.join(commands)}"


def _metric_lines(final: Metrics | None, best: Metrics | None) -> list[str]:
    shown = {
        name: "  ".join(f"{metric} {format_metric(value)}" for metric, value in metrics.items())
        for name, metrics in (("final", final), ("best", best))
        if metrics
    }
    if len(shown) == 2 and shown["final"] == shown["best"]:
        return [f"final  {shown['final']}  (also the best)"]
    return [f"{name:5}  {values}" for name, values in shown.items()]


def _stage_table(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            str(r),
            _percent(stage["idle_share"]),
            str(stage["weight_versions_max"]),
            _size(stage["weight_bytes_peak"]),
            _size(stage["activation_bytes_peak"]),
            f"{number_list(stage['forward_staleness'])} / {number_list(stage['backward_staleness'])}",
        )
        for r, stage in enumerate(stages)
    ]
    heads = ("stage", "idle", "versions", "weights", "activations", "staleness F / B")
    return text_table(heads, both_ends(rows, "stages, in summary.json"), ">>>>><")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _size(count: int | None) -> str:
    return "-" if count is None else size_of(count)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def evaluation_lines(evaluation: "Evaluation") -> list[str]:
    """The lines of a table: what was evaluated on what, and a line for each metric."""
    rows = [
        ("checkpoint", str(evaluation.checkpoint)),
        ("step", str(evaluation.step)),
        ("model", evaluation.model),
        ("dataset", f"{evaluation.dataset}, {evaluation.samples:,} samples"),
        *((name, _shown(name, value)) for name, value in evaluation.metrics.items()),
        *((name, _signed(value, evaluation.signatures.get(name))) for name, value in evaluation.others.items()),
    ]
    return text_lines(rows, "<<")


def evaluation_json(evaluation: "Evaluation") -> dict[str, Any]:
    """The evaluation as a JSON object, with `metrics` as in metrics.jsonl."""
    return {
        "checkpoint": str(evaluation.checkpoint),
        "step": evaluation.step,
        "model": evaluation.model,
        "dataset": evaluation.dataset,
        "samples": evaluation.samples,
        "metrics": {**evaluation.metrics, **evaluation.others},
        "signatures": dict(evaluation.signatures),
    }


def evaluation_texts(evaluation: "Evaluation") -> str:
    """A line of JSON for each generated text, with its references."""
    lines = ({"text": each.text, "references": list(each.references)} for each in evaluation.texts)
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def _shown(name: str, value: float) -> str:
    return f"{value:.4g}" if name in ("loss", "perplexity") else f"{value:.4g} %"


def _signed(value: float, signature: str | None) -> str:
    return f"{value:.4g}" if signature is None else f"{value:.4g}  ({signature})"
