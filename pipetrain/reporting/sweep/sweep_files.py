"""The files of `pipetrain report runs`: tables in Markdown, all numbers in JSON, a figure and a page."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.reporting.seed_statistics import Interval
from pipetrain.reporting.sweep import sweep_tables
from pipetrain.reporting.sweep.comparison import ComparedGroups
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.slowdown import as_content
from pipetrain.reporting.sweep.sweep_page import page
from pipetrain.reporting.sweep.sweep_tables import differences
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory


def as_json(compared: ComparedGroups) -> str:
    """Every group with its runs, mean and deviation of every column, the difference to the best, and slowdowns."""
    groups, slowdowns = compared.groups, compared.slowdowns
    content = {
        "metric": compared.metric,
        "groups": list(map(_group, groups, differences(groups, compared.metric))),
        "skipped": [{"path": str(run.path), "reason": run.reason} for run in compared.skipped],
        **({"heads": list(compared.heads)} if compared.heads else {}),
        **({"slowdowns": [as_content(each, groups) for each in slowdowns]} if slowdowns else {}),
    }
    return strict_json.dumps(content, indent=1) + "\n"


def _group(group: SweepGroup, difference: Interval | None) -> dict[str, Any]:
    counted = group.counted
    columns = sorted(group.columns)
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
        "from_best": _from_best(difference) if difference else None,
        "mean": {name: group.mean(name) for name in columns},
        "standard_deviation": {name: group.deviation(name) for name in columns},
        "runs": runs,
    }


def _from_best(difference: Interval) -> dict[str, Any]:
    return {
        "mean": difference.middle,
        "half_width": difference.half,
        "low": difference.low,
        "high": difference.high,
        "decided": difference.decided,
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
        "png": lambda path: draw(path, compared.shown, compared.groups, compared.slowdowns),
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
