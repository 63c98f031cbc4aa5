"""The processes that read samples for a session."""

import gc
import json
import multiprocessing

import pytest
from support.worker_pool import distributed, job, on, run_jobs, simulated
from torch import nn

from pipetrain.data.reader_process import ReaderProcess
from pipetrain.engine.errors import DataError
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.launch.worker import run_simulated
from pipetrain.runner.training import session

READ = {"_target_": "support.drawn_data.data", "workers": 2}
OFTEN = {"every_steps": 2}


def noting(events, start=ReaderProcess.start, connect=session.connect_stages):
    """What takes the place of a reader's start and of the connection of stages, and notes each."""

    def start_noted(process):
        events.append("reader")
        start(process)

    def connect_noted(*arguments):
        events.append("connect")
        return connect(*arguments)

    return start_noted, connect_noted


def run_noting(rank, jobs, ports):
    events = []
    ReaderProcess.start, session.connect_stages = noting(events)
    run_jobs(rank, jobs, ports)
    (jobs[0].run.path / f"events{rank}").write_text(" ".join(events))


def test_readers_start_once_and_before_stages_connect(tmp_path):
    (found,) = distributed([job(tmp_path / "read", "pipeoptim", 3, dataset=READ, checkpoint=OFTEN)], run_noting)
    plain = simulated(job(tmp_path / "plain", "pipeoptim", 3, dataset={**READ, "workers": 0}, checkpoint=OFTEN))
    assert [(tmp_path / "read" / f"events{rank}").read_text() for rank in range(3)] == [
        "reader reader connect", "connect", "reader reader connect",
    ]  # fmt: skip
    for name in ("weights_sha256", "loss_sha256"):
        assert found[name] == plain[name]


def test_simulated_run_starts_readers_of_either_end_once(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(ReaderProcess, "start", noting(events)[0])
    for checkpoint in ({"every_steps": 4}, {"every_minutes": 1e-9}):
        changes = {"checkpoint": checkpoint, "train": {"epochs": 1}}
        read, plain = (
            simulated(job(tmp_path / folder, "gpipe", 3, dataset={**READ, "workers": workers}, **changes))
            for folder, workers in (("read", 2), ("plain", 0))
        )
        assert read["weights_sha256"] == plain["weights_sha256"]
        assert len(events) == 4
        events.clear()


@pytest.mark.parametrize("where", ["sample", "program"])
def test_run_that_fails_leaves_no_reader(tmp_path, where):
    def show(record):
        if where == "program" and record["kind"] == "interval" and record["step"] > 2:
            raise KeyError("in the program")

    dataset = {**READ, "broken": 3} if where == "sample" else READ
    made = on("simulated", job(tmp_path, "pipeoptim", 3, dataset=dataset, checkpoint=OFTEN))
    with pytest.raises((DataError, KeyError), match=r"sample 3|in the program") as caught:
        run_simulated(made, show, Interruption())
    assert not multiprocessing.active_children(), caught


def test_run_that_diverges_leaves_no_reader(tmp_path):
    result = simulated(job(tmp_path, "pipedream", 3, dataset=READ, optimizer={"lr": 1e30}))
    assert result["status"] == "diverged"
    assert not multiprocessing.active_children()


def run_counting(rank, jobs, ports):
    """Notes the stage's weights, and all weights that are in memory once it is connected."""
    held = {}

    def connect(stages, *arguments):
        gc.collect()
        parameters = [each for each in gc.get_objects() if isinstance(each, nn.Parameter) and not each.is_meta]
        held.update(own=sum(each.numel() for each in stages[0].module.parameters()))
        held.update(all=sum(each.numel() for each in parameters))
        return CONNECT(stages, *arguments)

    session.connect_stages = connect
    run_jobs(rank, jobs, ports)
    (jobs[0].run.path / f"held{rank}.json").write_text(json.dumps(held))


CONNECT = session.connect_stages


@pytest.mark.parametrize("model", ["small_model", "tied_model"])
def test_process_holds_the_weights_of_its_own_stage_alone(tmp_path, model):
    changes = {"model": {"_target_": f"support.{model}.build"}, "train": {"max_steps": 2}}
    (found,) = distributed([job(tmp_path / "run", "gpipe", 3, **changes)], run_counting)
    held = [json.loads((tmp_path / "run" / f"held{rank}.json").read_text()) for rank in range(3)]
    assert all(each["all"] == each["own"] for each in held)
    plain = simulated(job(tmp_path / "plain", "gpipe", 3, **changes))
    assert found["weights_sha256"] == plain["weights_sha256"]
