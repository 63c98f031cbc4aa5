"""`pipetrain report runs`: reads the runs, prints their tables, and writes them with a figure where asked to."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.files import strict_json
from pipetrain.reporting.seed_statistics import Interval
from pipetrain.reporting.sweep import sweep_tables
from pipetrain.reporting.sweep.columns import column_of, metric_of
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS
from pipetrain.reporting.sweep.groups import ComparedGroups, SweepGroup
from pipetrain.reporting.sweep.slowdown import as_content
from pipetrain.reporting.sweep.sweep_page import page
from pipetrain.reporting.sweep.sweep_tables import differences
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS


def ranked(compared: ComparedGroups, metric: str | None) -> ComparedGroups:
    """The groups, best first and those without a completed run last, by the metric or, if None, a usual one.

    A group in which some run has no finite value of the metric, or did not reach the target, ranks below complete ones.

    Raises:
        ConfigError: no run has `metric`.
    """
    groups = compared.groups
    available = sorted({name for group in groups for run in group.runs for name in run.values})
    if metric is not None and metric not in available:
        raise ConfigError(f"--metric {metric}: no run has it; available: {', '.join(available) or 'none'}")
    chosen = metric or metric_of(groups, None)

    def rank(group: SweepGroup) -> tuple[bool, bool, float]:
        mean = group.mean(chosen) if chosen else None
        if chosen is None or mean is None:
            return not group.completed, True, math.inf
        missing = len(group.values(chosen)) < len(group.counted)
        return not group.completed, missing, -mean if column_of(chosen, groups).higher else mean

    return compared._replace(groups=sorted(groups, key=rank), metric=chosen)


def check_target(groups: Sequence[SweepGroup], target: Mapping[str, float]) -> None:
    """Checks that some run was evaluated by the metrics of the target, if any was evaluated at all.

    Raises:
        ConfigError: no run has one of the metrics.
    """
    available = sorted({name for group in groups for run in group.runs for name in (*run.curves, *run.final)})
    metrics = [name for name in available if name not in (*ALL_THROUGHPUTS, TRAIN_LOSS)]
    for name, value in target.items():
        if metrics and name not in metrics:
            raise ConfigError(f"--target {name}={value:g}: no run has it; available: {', '.join(metrics)}")


def as_json(compared: ComparedGroups) -> str:
    """Every group with its runs, mean and deviation of every column, the difference to the best, and slowdowns."""
    groups, metric, skipped, slowdowns = compared
    content = {
        "metric": metric,
        "groups": list(map(_group, groups, differences(groups, metric))),
        "skipped": [{"path": str(run.path), "reason": run.reason} for run in skipped],
        **({"slowdowns": [as_content(each, groups) for each in slowdowns]} if slowdowns else {}),
    }
    return strict_json.dumps(content, indent=1) + "\n"


def _group(group: SweepGroup, difference: Interval | None) -> dict[str, Any]:
    counted = group.counted
    columns = sorted({name for run in counted for name in run.values})
    runs = [
        {
            "path": str(run.path),
            "status": run.status,
            "reason": run.reason,
            "seed": run.settings.get("seed"),
            "counts": any(run is each for each in counted),
            "started_at": run.started_at,
            "final": dict(run.final),
            "best": dict(run.best),
            **run.numbers,
            "forward_staleness": list(run.staleness),
            "curves": {name: [list(point) for point in curve] for name, curve in run.curves.items()},
        }
        for run in group.runs
    ]
    return {
        "name": group.name,
        "statuses": dict(group.statuses),
        "from_best": None
        if difference is None
        else {
            "mean": difference.middle,
            "half_width": difference.half,
            "low": difference.low,
            "high": difference.high,
            "decided": difference.decided,
        },
        "mean": {name: group.mean(name) for name in columns},
        "standard_deviation": {name: group.deviation(name) for name in columns},
        "runs": runs,
    }


def write(compared: ComparedGroups, output: Path, title: str | None = None) -> list[Path]:
    """Writes the tables, the numbers, the figure and the page, all of them or none; returns the files.

    `output` is the path without their endings; its name is the default title of the page.

    Raises:
        OSError: of the file that cannot be written.
    """
    from pipetrain.reporting.sweep.sweep_figure import draw

    writers: dict[str, Callable[[Path], object]] = {
        "md": lambda path: write_whole(path, sweep_tables.markdown(compared)),
        "json": lambda path: write_whole(path, as_json(compared)),
        "png": lambda path: draw(path, compared.metric, compared.groups, compared.slowdowns),
        "html": lambda path: write_whole(path, page(title or output.name, compared)),
    }
    paths = {ending: output.with_name(f"{output.name}.{ending}") for ending in writers}
    partial = {ending: path.with_name(f"{path.name}.partial") for ending, path in paths.items()}
    try:
        for ending, path in paths.items():
            with _naming(path):
                writers[ending](partial[ending])
        for ending, path in paths.items():
            with _naming(path):
                partial[ending].replace(path)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
    return [*paths.values()]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names the file in an error of writing it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_page(compared: ComparedGroups, folders: Sequence[Path]) -> list[Path]:
    """Writes the page alone into the folder of the runs; nothing if there are several folders or it is read-only.

    Raises:
        OSError: it cannot be written.
    """
    path = RunDirectory(folders[0]).page
    if len(folders) > 1 or not os.access(folders[0], os.W_OK):
        return []
    with _naming(path):
        write_whole(path, page(folders[0].resolve().name, compared))
    return [path]


def target_of(words: Sequence[str], *, slowdown: bool = False) -> Mapping[str, float]:
    """The target of words such as `top1=80`; the training loss may be one for a slowdown alone.

    Raises:
        ConfigError: one is not of that form.
    """
    target = {}
    for word in words:
        metric, _, value = word.partition("=")
        if metric == TRAIN_LOSS and not slowdown:
            raise ConfigError(f"--target {word}: slowdowns alone have it as their target; name a --baseline")
        try:
            target[metric] = float(value)
        except ValueError:
            raise ConfigError(f"--target {word}: a metric and a number, such as top1=80") from None
    return target
