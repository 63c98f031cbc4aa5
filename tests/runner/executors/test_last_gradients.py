"""Checkpoints have the last gradients where a phase predicts with them."""

import pytest
from support.equal_bits import assert_same
from support.worker_pool import job, phase, simulated

from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.contents import Kind

SWITCHING = {
    "phases": [phase("gpipe", steps=4), phase("pipeoptim")],
    "checkpoint": {"every_steps": 2},
    "optimizer": {"momentum": 0.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 4, 6])
def test_resume_around_predicting_phase_start_keeps_bits(tmp_path, step):
    whole = simulated(job(tmp_path / "whole", "pipeoptim", 2, **SWITCHING))
    source = store.at_step(tmp_path / "whole", step)
    again = simulated(job(tmp_path / "again", "pipeoptim", 2, resume=source, **SWITCHING))
    assert_same(again, whole)


def test_nonpredicting_method_checkpoints_hold_no_gradient(tmp_path):
    simulated(job(tmp_path / "run", "gpipe", 2, optimizer=SWITCHING["optimizer"]))
    folder = store.checkpoints(tmp_path / "run")[-1]
    assert {kind for kind in Kind if contents.load_tensors(folder, kind)} == {Kind.MODEL, Kind.HISTORY}
