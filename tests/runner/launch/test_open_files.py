"""The number of files and connections of a process: raised as far as it may be, and named where that is too low."""

import resource
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.refusals import assert_refused
from support.worker_pool import job, on

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules import Placement
from pipetrain.runner.launch import open_files


@pytest.fixture
def limits(monkeypatch):
    """[soft, hard], which this process does not have."""
    limits = [256, 1024]

    def set_limits(_kind, wanted):
        limits[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    return limits


def of_stages(tmp_path, counts):
    made = on("distributed", job(tmp_path, "pipedream", 2))
    placement = Placement(tuple((r,) for r, count in enumerate(counts) for _ in range(count)))
    plan = SimpleNamespace(stages=counts, replicas=counts)
    return replace(made, plan=plan, placement=placement)


def test_soft_limit_is_raised_to_the_hard_one(limits):
    open_files.raise_limit()
    assert limits == [1024, 1024]


@pytest.mark.parametrize(
    ("counts", "process", "allowed"),
    [
        ((1,) * 4096, 7, True),
        ((1,) * 4096, 4095, False),
        ((1, 490, 1), 0, False),
        ((1, 490, 1), 1, True),
        ((256,) * 3, 300, True),
    ],
    ids=["one of many", "collects weights", "hub", "replica", "replica of a pipeline"],
)
def test_limit_below_the_connections_of_a_process_is_named(tmp_path, limits, monkeypatch, counts, process, allowed):
    made = of_stages(tmp_path, counts)
    monkeypatch.setenv("RANK", str(process))
    if allowed:
        open_files.check_open_files(made)
        return
    said = rf"process {process} needs \d+ files.*may have {limits[1]} open.*ulimit -n"
    assert_refused(said, open_files.check_open_files, made)
    monkeypatch.delenv("RANK")  # the largest need of all
    with pytest.raises(ConfigError, match=rf"^partition.stages={len(counts)}: process {made.placement.of_last_stage} "):
        open_files.check_open_files(made)


@pytest.mark.usefixtures("limits")
def test_first_process_also_hosts_the_store_unless_torchrun_does(tmp_path, monkeypatch):
    made = of_stages(tmp_path, (1,) * 500)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("RANK", "0")
    open_files.check_open_files(made)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert_refused("process 0", open_files.check_open_files, made)
    monkeypatch.setenv("RANK", "1")
    open_files.check_open_files(made)


@pytest.mark.parametrize(
    ("line", "named"), [("OSError: [Errno 24] Too many open files", True), ("KeyError: 'label'", False)]
)
def test_error_of_too_many_open_files_names_the_limit(limits, line, named):
    found = open_files.explained(line)
    assert (found is not None and str(limits[0]) in found and "ulimit -n" in found) is named
