"""The drains of another run are those that its records tell of."""

import json

import pytest
from support.worker_pool import settings

from pipetrain.errors import ConfigError
from pipetrain.run.replayed_drains import replayed_drains


def test_drains_are_those_that_the_records_of_a_run_tell_of(tmp_path):
    records = [("interval", 3), ("drain", 8), ("eval", 9), ("drain", 5), ("drain", 8)]
    lines = [json.dumps({"kind": kind, "step": step}) for kind, step in records]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "dra']))
    assert replayed_drains(settings("pipedream", replay_drains=str(tmp_path))) == [5, 8]
    assert replayed_drains(settings("pipedream")) == []


def test_folder_without_records_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=f"replay_drains={tmp_path}: no metrics.jsonl here"):
        replayed_drains(settings("pipedream", replay_drains=str(tmp_path)))
