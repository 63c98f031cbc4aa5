"""metrics.csv: the records of metrics.jsonl as a table."""

import csv
import io
from typing import Any

from typing_extensions import override

from pipetrain.engine.files import strict_json
from pipetrain.runner.tracking.callbacks import Callback, RunInfo
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.records import Record, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory


class CsvFile(Callback):
    """A row for each record and a column for each field, in the order in which fields first appear.

    A record with a new field has the table written again from metrics.jsonl. So does the first record of a resumed
    run, of which metrics.jsonl has only the records up to the checkpoint.
    """

    @override
    def on_start(self, run: RunInfo) -> None:
        self._run = RunDirectory(run.directory)
        self._columns: list[str] = []

    @override
    def on_record(self, record: Record) -> None:
        if record.keys() <= {*self._columns}:
            with self._run.metrics_table.open("a", encoding="utf-8") as file:
                self._writer(file).writerow(strict_json.loads(strict_json.dumps(record)))  # without NaN
            return
        rows, text = read_records(self._run), io.StringIO()
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        writer = self._writer(text)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self._run.metrics_table, text.getvalue())

    def _writer(self, file: Any) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self._columns, lineterminator="\n")
