"""Processes that would not train the same: they are told so where they meet, before they train."""

import json
import os
from dataclasses import replace

import pytest
from support.refusals import assert_refused
from support.worker_pool import forked, job, plan_of
from torch.distributed import TCPStore

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages import control
from pipetrain.runner.launch import agreement
from pipetrain.runner.launch.agreement import agree
from pipetrain.runner.launch.watchdog import Watchdog
from pipetrain.runner.launch.worker import main
from pipetrain.runner.training.components.data import build_data


def made(tmp_path, method="gpipe", stages=2, **changes):
    return job(tmp_path / "run", method, stages, **changes)


@pytest.fixture
def meeting(monkeypatch):
    """Has jobs, one for each process, meet; gives what process 0 is told."""

    def meet(*jobs):
        told, sent = [], []
        monkeypatch.setattr(agreement.dist, "barrier", lambda: None)
        monkeypatch.setattr(control, "broadcast_json", lambda own: sent.append(json.dumps(own)) or json.loads(sent[0]))
        for process, each in enumerate(jobs):
            monkeypatch.setattr(control, "all_gather_json", lambda value: told.append(value) or [])
            agree(each, process)
        monkeypatch.setattr(control, "all_gather_json", lambda _value: told)
        return agree(jobs[0], 0)

    return meet


def test_equal_processes_have_nothing_to_say(meeting, tmp_path):
    one = replace(made(tmp_path), data=build_data(made(tmp_path).settings).fingerprints())
    assert meeting(one, one, one) == []


UNEQUAL = {
    "method": ({"method": "pipedream"}, "method: gpipe and pipedream"),
    "data set": (
        {"dataset": {"_target_": "support.ragged_data.ragged"}},
        "dataset: pipetrain.zoo.data.images.synthetic.synthetic_images and support.ragged_data.ragged",
    ),
    "seed": ({"seed": 5}, "seed: 3 and 5"),
    "optimizer": (
        {"optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.05}},
        "optimizer: torch.optim.SGD and torch.optim.AdamW",
    ),
    "averages": ({"stored": {"train": {"ema": 0.9}}}, "train.ema: null and 0.9"),
    "evaluations": ({"eval": {"every_epochs": 2}}, "eval.every_epochs: 1 and 2"),
    "microbatches": ({"stored": {"train": {"microbatches": 2}}}, "train.microbatches: 1 and 2"),
    "model": ({"model": {"_target_": "support.tied_model.build"}}, "model: support.small_model.build and support."),
    "rate's schedule": ({"lr_schedule": {"unit": "epoch"}}, "lr_schedule.unit: step and epoch"),
}


def unequal(tmp_path, method="gpipe", stored=None, **changes):
    """A job with these changes; those of `stored` only as config.yaml has them."""
    one = made(tmp_path, method, **changes)
    sections = {name: {**one.settings.stored.get(name, {}), **values} for name, values in (stored or {}).items()}
    return replace(one, settings=replace(one.settings, stored={**one.settings.stored, **sections}))


@pytest.mark.parametrize(("changes", "words"), UNEQUAL.values(), ids=UNEQUAL)
def test_unequal_settings_are_refused_by_name(meeting, tmp_path, monkeypatch, changes, words):
    data = build_data(made(tmp_path).settings)
    monkeypatch.setattr("support.worker_pool.build_data", lambda _settings: data)
    with pytest.raises(ConfigError) as caught:
        meeting(made(tmp_path), made(tmp_path), unequal(tmp_path, **changes))
    assert str(caught.value).startswith(f"processes 0 and 2 differ in {words}")


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": {"workers": 1}}, {"stored": {"dataset": {"root": "/a/b"}}}, {"device": "cpu"}, {"threads": 3},
        {"debug": True}, {"resume": "auto"},
    ],
    ids=str,
)  # fmt: skip
def test_what_each_process_may_have_of_its_own_is_no_difference(meeting, tmp_path, changes):
    here = unequal(tmp_path, stored={"dataset": {"root": "/b/a"}}) if "stored" in changes else made(tmp_path)
    assert meeting(here, replace(unequal(tmp_path, **changes), run=made(tmp_path / "elsewhere").run)) == []


def test_unequal_stages_are_refused(meeting, tmp_path):
    one = made(tmp_path)
    other = replace(one, plan=plan_of([(0, 1), (1, one.plan.bounds[-1][1])]))
    assert_refused(r"processes 0 and 1 differ in stage 0: layers 0 to \d+, 1 weights, ", meeting, one, other)


def test_unequal_data_are_refused_by_sample(meeting, tmp_path):
    one = made(tmp_path)
    data = build_data(one.settings).fingerprints()
    other = build_data(made(tmp_path, seed=4, dataset={"train": 23}).settings).fingerprints()
    assert_refused("number of samples .* 22 and 23;", meeting, replace(one, data=data), replace(one, data=other))


def test_unequal_versions_are_warned_of_once(meeting, tmp_path):
    one, other = ({"torch_version": version, "git_commit": commit} for version, commit in (("2.1", "a"), ("2.2", None)))
    one, other = (replace(made(tmp_path), provenance=each) for each in (one, other))
    (line,) = meeting(one, other, other)
    assert line.startswith("warning: processes 0 and 1 differ in torch_version 2.1 and 2.2, as do 1 more")


def meet(rank, jobs, port):
    """What each process does: its part of its job."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost",
        MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    own = jobs[rank]
    try:
        with Watchdog(rank, 2, None, own.settings.launch) as watchdog:
            try:
                main(own, watchdog, on_met=lambda each: (each.run.path / "met").touch())
            except ConfigError as error:
                (own.run.path / f"error-{rank}").write_text(str(error))
    finally:
        (own.run.path / f"ended-{rank}").touch()


@pytest.mark.slow
def test_processes_that_differ_end_alike_before_anything_is_written(tmp_path):
    jobs = [made(tmp_path), made(tmp_path, optimizer={"lr": 0.5})]
    jobs[0].run.path.mkdir()
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    forked(meet, jobs, store.port, count=2)
    written = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert sorted(written) == ["ended-0", "ended-1", "error-0", "error-1"]
    assert "processes 0 and 1 differ in optimizer.lr: 0.05 and 0.5" in written["error-0"]
    assert written["error-0"] == written["error-1"]
