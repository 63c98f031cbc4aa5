"""Groups of runs, read back from the measurements of an experiment."""

import json

from support.stored_runs import write_run

from papers.measured_section import groups_from_json
from pipetrain.reporting.sweep.comparison import collect, ranked
from pipetrain.reporting.sweep.sweep_files import as_json


def test_groups_read_back_from_json_are_written_alike(tmp_path):
    write_run(tmp_path / "a", "method=gpipe", top1=80.0)
    write_run(tmp_path / "b", "method=lwp", status="failed", final={"top1": None})
    compared = ranked(collect([tmp_path], {}), None)
    written = as_json(compared)
    read = groups_from_json(json.loads(written), {group.name: group.method for group in compared.groups})
    assert [group.method for group in read] == [group.method for group in compared.groups]
    assert as_json(compared._replace(groups=read)) == written
