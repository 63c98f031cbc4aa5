"""Runs with parameter groups: simulated against distributed, resumed against whole, bit for bit."""

import pytest
import torch
from support.equal_bits import TIED, both_ways, replicated, same_resumed
from support.worker_pool import job, phase, simulated

from pipetrain.runner.training.checkpoint import contents, store

OF_BIASES = {"max_dims": 1, "weight_decay": 0, "lr_scale": 2.0}
SGD = {"optimizer": {"weight_decay": 0.1, "groups": [{"match": "6.*", "nesterov": True}, OF_BIASES]}}
ADAMW = {
    "optimizer": {
        "_target_": "torch.optim.AdamW",
        "lr": 0.01,
        "weight_decay": 0.1,
        "groups": [{"match": ["0.*", "*.lstm.*"], "betas": [0.5, 0.9], "lr_scale": 0.5}, OF_BIASES],
    }
}
CLIPPED = {"optimizer": {**SGD["optimizer"], "clip_norm": 0.5}}
CASES = {
    "pipeoptim": ("pipeoptim", 2, ADAMW),
    "spectrain": ("spectrain", 2, {"optimizer": {"groups": [OF_BIASES]}}),
    "phases": ("gpipe", 2, {"phases": [phase("gpipe", steps=4), phase("pipemare")], **CLIPPED}),
    "replicas": replicated((2, 1), "pipeoptim", 1, **SGD),
    "tied": ("gpipe", 2, {**TIED, "optimizer": {"groups": [{"match": "encoder.*", "lr_scale": 0.1}, OF_BIASES]}}),
}


@pytest.mark.slow
def test_parameter_groups_have_equal_bits_in_both_executors(tmp_path):
    jobs = [job(tmp_path / name, method, D, **more) for name, (method, D, more) in CASES.items()]
    found = dict(zip(CASES, both_ways(jobs), strict=True))
    for name, (method, D, more) in CASES.items():
        more = {**more, "optimizer": {**more["optimizer"], "groups": None}}
        plain = simulated(job(tmp_path / f"{name}-plain", method, D, **more))
        assert found[name][0]["weights_sha256"] != plain["weights_sha256"], name


@pytest.mark.slow
@pytest.mark.parametrize(("method", "settings"), [("pipeoptim", SGD), ("pipeoptim", ADAMW), ("pipemare", CLIPPED)])
def test_resumed_run_with_parameter_groups_has_equal_bits(tmp_path, method, settings):
    same_resumed(tmp_path, method, 3, **settings, checkpoint={"every_steps": 4})


def test_parameter_groups_continue_after_another_cut(tmp_path):
    changes = {**ADAMW, "checkpoint": {"every_steps": 4}}
    simulated(job(tmp_path / "whole", "gpipe", 2, **changes))
    half = store.at_step(tmp_path / "whole", 4)
    simulated(job(tmp_path / "again", "gpipe", 3, resume=half, **changes))
    whole, again = (contents.model_state(store.checkpoints(tmp_path / name)[-1]) for name in ("whole", "again"))
    assert all(torch.allclose(again[name], value, rtol=1e-5, atol=1e-6) for name, value in whole.items())
    simulated(
        job(
            tmp_path / "other",
            "gpipe",
            3,
            resume=half,
            **{**changes, "optimizer": {**ADAMW["optimizer"], "groups": None}},
        )
    )
    other = contents.model_state(store.checkpoints(tmp_path / "other")[-1])
    assert not torch.allclose(other["6.bias"], whole["6.bias"], rtol=1e-3)
