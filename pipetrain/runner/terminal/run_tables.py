"""Tables that runs print."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.engine.failure import relative_to_cwd
from pipetrain.runner.terminal.text_table import (
    both_ends,
    counted,
    number_list,
    range_list,
    rate_of,
    shortened,
    size_of,
    text_table,
)
from pipetrain.runner.tracking.records import format_metric
from pipetrain.runner.tracking.throughput import MEASURED, PREDICTED, SIMULATOR, in_tokens

if TYPE_CHECKING:
    from pipetrain.runner.partition.run_plan import Plan


_WIDTH = 100
"""Width of tables in columns if there is no terminal."""
Metrics = Mapping[str, float | None]
_LEAST_LABEL, _MOST_LABEL = 8, 60
_SHOWN_S = 0.05
"""Shorter times would round to 0.0 s and are left out."""


def plan_table(plan: "Plan", devices: Sequence[str]) -> list[str]:
    """A line for each stage: its layers, parameters, share of the estimated time, and device; fits the terminal."""
    total = sum(stage.estimated_seconds for stage in plan.stages) or 1.0
    heads = ("stage", "layers", "", "parameters", "est. time", "device")
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    for width in range(_MOST_LABEL, _LEAST_LABEL - 1, -1):
        rows = []
        for r, (stage, device) in enumerate(zip(plan.stages, devices, strict=True)):
            layers = range_list(range(stage.first, stage.last))
            ends = [stage.labels[0], stage.labels[-1]] if len(stage.labels) > 1 else stage.labels
            labels = " to ".join(shortened(label, width) for label in ends)
            share = f"{100 * stage.estimated_seconds / total:.1f} %"
            rows.append((str(r), layers, labels, f"{stage.parameters:,}", share, device))
        table = text_table(heads, both_ends(rows, "stages, in plan.json"), "><<>><")
        if max(map(len, table)) <= columns:
            break
    return table


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The lines that a run ends with: its status, its metrics, and the measurements of each stage."""
    lines = _outcome(summary)
    if goals := summary.get("target_metrics"):
        text = f"train.target={{{', '.join(f'{name}: {value}' for name, value in goals.items())}}}"
        if (target := summary.get("target")) is None:
            lines.append(f"{text} was not reached")
        else:
            when = f"step {target['step']}, epoch {target['epoch']}, {_duration(target['wall_s'])}"
            lines.append(f"{text} was reached at {when}")
    if summary.get("early_stopping"):
        lines.append(summary["reason"])
    lines += _metric_lines(summary.get("final") or {}, summary.get("best") or {}, summary.get("best_epoch") or {})
    if any("forward_staleness" in stage for stage in summary["per_stage"]):
        lines += _stage_table(summary["per_stage"])
    return lines + _message_table(summary["per_stage"])


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


def next_steps(run: Path, *, traced: bool) -> str:
    """A line of commands that look at a run."""
    folder, above = (shlex.quote(relative_to_cwd(each)) for each in (run, run.parent))
    commands = [f"tensorboard --logdir {folder}", f"pipetrain report runs {above}"]
    if traced:
        commands.append(f"pipetrain timeline {folder}")
    return f"next: {', '.join(commands)}"


def _metric_lines(final: Metrics, best: Metrics, best_epoch: Mapping[str, int]) -> list[str]:
    """The last metrics, and the best with their epochs, as each metric may be best in another."""
    last, first = (
        [f"{metric} {format_metric(value)}" for metric, value in metrics.items()] for metrics in (final, best)
    )
    lines = [f"final  {'  '.join(last)}"] if last else []
    if last and last == first:
        return [f"{lines[0]}  (also the best)"]
    epochs = [f" (epoch {best_epoch[metric]})" if metric in best_epoch else "" for metric in best]
    if len(set(epochs)) == 1:
        first, epochs = ["  ".join(first)], [f" {epochs[0]}".rstrip()]
    shown = "  ".join(f"{value}{epoch}" for value, epoch in zip(first, epochs, strict=True))
    return [*lines, f"best   {shown}"] if first else lines


def _stage_table(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for r, stage in enumerate(stages):
        idle, sizes = stage["idle_share"], (stage["weight_bytes_peak"], stage["activation_bytes_peak"])
        staleness = f"{number_list(stage['forward_staleness'])} / {number_list(stage['backward_staleness'])}"
        memory = ("-" if size is None else size_of(size) for size in sizes)
        share = "-" if idle is None else f"{idle:.0%}"
        rows.append((str(r), share, str(stage["weight_versions_max"]), *memory, staleness))
    heads = ("stage", "idle", "versions", "weights", "activations", "staleness F / B")
    return text_table(heads, both_ends(rows, "stages, in summary.json"), ">>>>><")


def _message_table(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Bytes that a stage sends in a step, their share of plain messages', and times; empty if all are plain."""
    rows = []
    for r, stage in enumerate(stages):
        if "encode_s" in stage:
            sent = (_sent(stage, direction) for direction in ("activations", "gradients"))
            times = (f"{1000 * stage[name]:.1f} ms" for name in ("encode_s", "decode_s"))
            rows.append((str(r), *sent, *times))
    heads = ("stage", "activations sent", "gradients sent", "encoding", "decoding")
    return text_table(heads, both_ends(rows, "stages, in summary.json"), "><<>>") if rows else []


def _sent(stage: Mapping[str, Any], direction: str) -> str:
    count, plain, error = (stage.get(f"{direction}_{what}") for what in ("bytes", "plain_bytes", "error"))
    if count is None or plain is None:
        return "-"
    text = f"{size_of(count)}, {count / plain:.1%} of plain"
    return text if error is None else f"{text}, error {error:.2g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
