"""The runs of a sweep as one table and one figure."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.report.sweep.groups import SweepGroup, collect
from pipetrain.report.text_table import markdown_table
from pipetrain.tracking.evaluations import LOWER_IS_BETTER
from pipetrain.tracking.whole_file import write_whole


def report(folders: Sequence[Path], metric: str, output: Path | None) -> None:
    """Prints the table; with `output` also writes OUTPUT.md, OUTPUT.json and OUTPUT.png.

    Raises:
        ConfigError: there is no finished run, or none has the metric.
    """
    groups = collect(folders)
    if not any(metric in group.final for group in groups):
        available = sorted({name for group in groups for name in group.final})
        raise ConfigError(f"--metric {metric}: no run has this metric; available: {', '.join(available) or 'none'}")
    sign = 1 if metric in LOWER_IS_BETTER else -1
    groups.sort(key=lambda group: sign * _mean(group.final[metric]) if metric in group.final else math.inf)
    table = _table(groups, metric)
    print(table)
    if output is None:
        return
    from pipetrain.report.sweep.figure import draw

    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output.with_suffix(".md"), table + "\n")
    write_whole(output.with_suffix(".json"), json.dumps([asdict(group) for group in groups], indent=1) + "\n")
    draw(output.with_suffix(".png"), metric, groups)
    print(f"\nwritten to {output.with_suffix('')}.md, .json and .png")


def _table(groups: Sequence[SweepGroup], metric: str) -> str:
    heads = ("", f"final {metric}", f"best {metric}", "runs", "staleness of F by stage", "copies of the weights")
    rows = []
    for group in groups:
        others = {"diverged": group.diverged, "damaged": group.damaged}
        ended = ", ".join([str(group.completed), *(f"{count} {how}" for how, count in others.items() if count)])
        stale = " ".join(map(str, group.staleness)) if group.completed else "-"
        copies = f"{group.copies:.2f}" if group.completed else "-"
        values = (_mean_and_spread(group.final.get(metric, [])), _mean_and_spread(group.best.get(metric, [])))
        rows.append((group.label, *values, ended, stale, copies))
    return "\n".join(markdown_table(heads, rows))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _mean_and_spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{_mean(values):.2f}{spread}"
