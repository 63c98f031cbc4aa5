"""What was measured of each stage, from the reports of its replicas."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from pipetrain.schedules import Replicas

Report = Mapping[str, Any]


def of_stages(reports: Sequence[Report], replicas: Replicas) -> list[dict[str, Any]]:
    """A report of each stage: that of its one worker, or those of its replicas taken together and beside each other.

    Of its replicas' staleness it has all values, of their idle shares the mean, of other numbers the largest.

    Args:
        reports: of every worker.
        replicas: who they are.
    """
    by_stage = groupby(zip(replicas.places, reports, strict=True), key=lambda each: each[0][0])
    return [_together([report for _, report in of_stage]) for _, of_stage in by_stage]


def _together(reports: Sequence[Report]) -> dict[str, Any]:
    if len(reports) == 1:
        return dict(reports[0])
    known = {name: [each[name] for each in reports if each.get(name) is not None] for name in reports[0]}
    together = {name: _of_all(name, values) for name, values in known.items()}
    return {**together, "replicas": [dict(report) for report in reports]}


def _of_all(name: str, values: Sequence[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], list):
        return sorted({each for value in values for each in value})
    return fmean(values) if name == "idle_share" else max(values)
