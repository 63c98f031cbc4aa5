"""What a run is refused under a schedule that a library carries out, before any process starts."""

from types import SimpleNamespace

import pytest
import torch
from support.refusals import assert_refused
from support.worker_pool import settings

from pipetrain.engine.executors.pipeline_rules import common_placement
from pipetrain.engine.schedules import Placement
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.one_f_one_b import OneFOneBFlush
from pipetrain.plugins.torch_schedules.schedules import DualPipeV, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble


def check(sizes=(8, 8, 4), train=None, *, varying=False, **changes):
    loader = SimpleNamespace(sizes=lambda _epoch: sizes, varying=varying, dataset=[])
    chosen = settings("gpipe", train={"batch_size": 8, "microbatches": 4, **(train or {})}, **changes)
    ZBVZeroBubble().check_run(chosen, loader)


def test_settings_that_torch_schedules_take_are_not_refused():
    check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"executor": {"name": "simulated"}}, r"executor=simulated: .* use executor=distributed, or schedule=gpipe"),
        ({"trace": True}, r"trace=true: schedule=torch_zbv_zero_bubble is run by .* leave trace out"),
        ({"train": {"recompute": True}}, r"train.recompute: .* keeps all activations; leave it out"),
        ({"train": {"recompute_boundaries": [0]}}, r"train.recompute: .* leave it out"),
        ({"sizes": (8, 8, 7)}, r"train.microbatches=4: .* has 7 samples, .* dataset.limit"),
        ({"varying": True}, r"takes minibatches of one shape only, and those of list vary; schedule=1f1b_flush"),
    ],
)
def test_unsupported_torch_schedule_settings_are_refused(changes, message):
    assert_refused(message, check, **changes)


def test_phases_that_would_move_stages_are_refused():
    assert common_placement([GPipe(), OneFOneBFlush()], 4) == Placement.one_each(4)
    assert common_placement([Interleaved1F1B(), InterleavedZeroBubble()], 4) == Interleaved1F1B(2).placement(4)
    for others in ([ZBVZeroBubble(), GPipe()], [DualPipeV(), Interleaved1F1B()], [GPipe(), ZBVZeroBubble()]):
        assert_refused(f"phases: schedule={others[0].name} and schedule={others[1].name}", common_placement, others, 4)


@pytest.mark.parametrize(("version", "warned"), [("2.11.0", True), ("2.12.1+cpu", True), ("2.13.0+cpu", False)])
def test_split_backward_under_an_older_torch_is_warned_of(monkeypatch, version, warned):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    notes = ZBVZeroBubble().notes(4)
    assert notes[0] == "2 processes: stages 0 and 3, stages 1 and 2"
    assert any("warning" in note for note in notes) == warned
    assert len(Interleaved1F1B().notes(4)) == 1
