"""What a run shows on the terminal: its plan before, its summary after."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipetrain.report.text_table import both_ends, number_list, text_table

if TYPE_CHECKING:
    from pipetrain.planner.plan import Plan, StagePlan

_LABEL_WIDTH = 20


def plan_table(plan: "Plan", devices: Sequence[str]) -> list[str]:
    """A line for each stage: its layers, parameters, share of the estimated time, and device; at most 100 columns."""
    total = sum(stage.estimated_seconds for stage in plan.stages) or 1.0
    rows = [
        (
            str(r),
            _range(stage),
            _labels(stage),
            f"{stage.parameters:,}",
            f"{100 * stage.estimated_seconds / total:.1f} %",
            device,
        )
        for r, (stage, device) in enumerate(zip(plan.stages, devices, strict=True))
    ]
    heads = ("stage", "layers", "", "parameters", "time", "device")
    return text_table(heads, both_ends(rows, "stages, in plan.json"), "><<>><")


def _range(stage: "StagePlan") -> str:
    if stage.first == stage.last:
        return "-"
    return str(stage.first) if stage.last == stage.first + 1 else f"{stage.first}-{stage.last - 1}"


def _labels(stage: "StagePlan") -> str:
    names = [label if len(label) <= _LABEL_WIDTH else "..." + label[3 - _LABEL_WIDTH :] for label in stage.labels]
    if not names:
        return ""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The few lines that a run ends with: how it went, its metrics, and what was measured of each stage."""
    lines = [f"{summary['status']} after {summary['steps']} steps, {_duration(summary['wall_s'])}"]
    if summary.get("samples_per_second"):
        lines[0] += f", {summary['samples_per_second']:.0f} samples/s"
    lines += _metric_lines(summary.get("final"), summary.get("best"))
    if any("forward_staleness" in stage for stage in summary["per_stage"]):
        lines += _stage_table(summary["per_stage"])
    return lines


def _metric_lines(final: Mapping[str, float] | None, best: Mapping[str, float] | None) -> list[str]:
    shown = {
        name: "  ".join(f"{metric} {value:.4g}" for metric, value in metrics.items())
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
            _megabytes(stage["weight_bytes_peak"]),
            _megabytes(stage["activation_bytes_peak"]),
            f"{number_list(stage['forward_staleness'])} / {number_list(stage['backward_staleness'])}",
        )
        for r, stage in enumerate(stages)
    ]
    heads = ("stage", "idle", "versions", "weights MB", "activations MB", "staleness F / B")
    return text_table(heads, both_ends(rows, "stages, in summary.json"), ">>>>><")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
