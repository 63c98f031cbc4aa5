"""metrics.jsonl: one JSON object a line, such as for an `interval` of steps, the end of an `epoch`, or an `eval`."""

import contextlib
import errno
import logging
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from pipetrain.data.files import strict_json
from pipetrain.data.files.strict_json import number
from pipetrain.engine.errors import is_whole
from pipetrain.runner.tracking.files import naming, write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory

Record = dict[str, Any]
Measured = Sequence[tuple[int, Mapping[str, float]]]
"""Minibatch of the run, and measurements of a worker in it by name."""
STALENESS = "staleness"
"""The kind of a record of the distances between the weights that a minibatch reads."""

MEASURED_OF_STAGES = (
    "idle_share",
    "weight_versions_max",
    "weight_bytes_peak",
    "activation_bytes_peak",
    "peak_memory_bytes",
)
OF_STAGE = re.compile(r"stage(\d+)_")
"""The beginning of a field that belongs to a stage."""
_STALENESS = ("forward_staleness", "backward_staleness")
OF_MESSAGES = (
    *(
        f"{direction}_{what}"
        for direction in ("activations", "gradients")
        for what in ("bytes", "plain_bytes", "error")
    ),
    "encode_s",
    "decode_s",
)
"""Measurements of messages that have a format; those of plain ones are not made."""
REPLICA_DISTANCE = "replica_distance"
"""A measurement of replicas that train alone."""


def stage_fields(reports: Sequence[Mapping[str, Any]]) -> Record:
    """Measurements of each stage, as `stage0_idle_share`, and of its replicas, as `stage0_replica1_idle_share`.

    Of the staleness values seen, the largest.
    """
    record: Record = {}
    for r, report in enumerate(reports):
        replicas = {f"stage{r}_replica{k}_": replica for k, replica in enumerate(report.get("replicas", ()))}
        for prefix, measured in {f"stage{r}_": report, **replicas}.items():
            record.update({f"{prefix}{name}": measured.get(name) for name in MEASURED_OF_STAGES})
            record.update({f"{prefix}{name}": max(measured.get(name) or [], default=None) for name in _STALENESS})
            record.update(
                {f"{prefix}{name}": measured[name] for name in (*OF_MESSAGES, REPLICA_DISTANCE) if name in measured}
            )
    return record


def stage_measurements(record: Mapping[str, Any], num_stages: int) -> list[Record]:
    """Measurements of each stage in such a record; empty if it has another number of stages."""
    stages = {int(found[1]) for name in record if (found := OF_STAGE.match(name))}
    if stages != set(range(num_stages)):
        return [{} for _ in range(num_stages)]
    return [{name: record[f"stage{r}_{name}"] for name in MEASURED_OF_STAGES} for r in range(num_stages)]


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a record of kind `eval`, by their names; NaN for what was not finite."""
    return {
        name.removeprefix("eval_"): number(value)
        for name, value in record.items()
        if name.startswith("eval_") and name != "eval_s"
    }


def format_metric(value: float | None) -> str:
    """A metric as the terminal shows it, just measured or read back."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"


log = logging.getLogger(__name__)


class MetricsFile:
    """Appends records; a resumed run first drops those after the checkpoint that it continues.

    `after_step` is the step of that, 0 for a fresh run; the record of an evaluation there stays if it is `evaluated`.
    """

    def __init__(self, run: RunDirectory, after_step: int, *, evaluated: bool = True) -> None:
        copy_records_until(run, run, after_step, evaluated=evaluated)
        self._path = run.metrics
        self._file = self._opened()

    def _opened(self) -> TextIO:
        return self._path.open("a+", encoding="utf-8", buffering=1)

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line and flushes it; if the file has been removed, writes all earlier lines again first."""
        if self._path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder has taken the place of the run's records", str(self._path))
        if not self._path.exists():
            log.warning("%s was removed while the run was writing to it; it has been written again", self._path)
            self._file.seek(0)
            lines = self._file.read()
            self._file.close()
            write_whole(self._path, lines)
            self._file = self._opened()
        with naming(self._path):
            self._file.write(_line(record))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(record: dict[str, Any]) -> str:
    return strict_json.dumps(record) + "\n"


def read_records(run: RunDirectory) -> list[dict[str, Any]]:
    """The records of a run. Damaged lines, such as a crash may leave at the end, are skipped."""
    if not run.metrics.is_file():
        return []
    found = []
    for line in run.metrics.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
        with contextlib.suppress(ValueError):
            record = strict_json.loads(line)
            if isinstance(record, dict) and is_whole(step := record.get("step")) and 0 <= step <= sys.maxsize:
                found.append(record)
    return found


def copy_records_until(source: RunDirectory, run: RunDirectory, step: int, *, evaluated: bool = True) -> None:
    """Begins the records of a run with those of `source`, which it continues, up to the step of the checkpoint.

    `evaluated` is True if the record of an evaluation at that very step is copied, too.
    """
    kept = [record for record in read_records(source) if record["step"] <= step]
    if not evaluated:
        kept = [record for record in kept if record["step"] < step or record.get("kind") != "eval"]
    write_whole(run.metrics, "".join(map(_line, kept)))
