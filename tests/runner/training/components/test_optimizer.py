"""The learning rates that a run applies, as its records have them."""

import pytest
import torch
from support.worker_pool import job, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.tracking import records
from pipetrain.runner.training.components.optimizer import rates_by_stage
from pipetrain.runner.training.components.optimizer_checks import try_step


def test_method_that_scales_no_rate_leaves_one_for_all_stages():
    rates = rates_by_stage(lambda step: 0.1 / (step + 1), [Phase(PipelineRules(GPipe(), Synchronous(), 2, 1))])
    assert rates(1) == {"lr": 0.05}


def test_rates_are_those_of_the_phase_that_a_step_is_in():
    scaled = PipelineRules(PipelinedBackprop(), Stale(stage_lr_scale=[0.5, 1.0]), 2, 1)
    phases = [Phase(scaled, 0, 4), Phase(PipelineRules(GPipe(), Synchronous(), 2, 1), 4, 8)]
    rates = rates_by_stage(lambda _step: 0.1, phases)
    assert rates(3) == {"lr": 0.1, "stage0_lr": 0.05, "stage1_lr": 0.1}
    assert rates(4) == {"lr": 0.1, "stage0_lr": 0.1, "stage1_lr": 0.1}


def test_records_have_pipemare_rates_of_each_stage(tmp_path):
    made = job(tmp_path, "pipemare", 2, method={"t1": True, "anneal_steps": 4})
    applied = []

    def noting(self, context, update, before=PipeMare.learning_rate_scale):
        scale = before(self, context, update)
        applied.append((context.stage, update, scale))
        return scale

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipeMare, "learning_rate_scale", noting)
        simulated(made)
    of_stage0 = {update: scale for stage, update, scale in applied if stage == 0}
    intervals = [record for record in records.read_records(made.run) if record["kind"] == "interval"]
    assert [record["stage0_lr"] for record in intervals] == pytest.approx(
        [record["lr"] * of_stage0[record["step"] - 1] for record in intervals]
    )
    assert intervals[0]["stage0_lr"] < intervals[0]["lr"]
    assert intervals[-1]["stage0_lr"] == intervals[-1]["lr"]


def test_recorded_rates_divided_by_delay_anneal_as_those_of_the_stages():
    rules = PipelineRules(PipelinedBackprop(), Stale(), 2, 1)
    rules.divide_rates_by_delay(10)
    rates = rates_by_stage(lambda _step: 0.1, [Phase(rules, 4, 100)])
    delay = rules.contexts[0].rate_delay
    assert delay > 1
    found = [rates(step)["stage0_lr"] for step in (4, 9, 14)]
    assert found == pytest.approx([0.1 / delay, 0.1 / delay**0.5, 0.1])


def test_step_is_tried_for_complex_weights_beside_real_ones():
    muon = {"_target_": "pipetrain.zoo.optim.matrices.Muon", "lr": 0.1, "clip_norm": None, "groups": []}
    weights = {"large": torch.ones(8, 8, dtype=torch.complex64), "small": torch.ones(2, 2)}
    with pytest.raises(ConfigError, match="Muon takes real matrices"):
        try_step(OptimizerSettings.of(muon), weights, device="cpu")
