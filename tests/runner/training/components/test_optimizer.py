"""The optimizer of a run: its rates, its parameter groups, and a step that is tried."""

from functools import partial

import pytest
import torch
from support import one_run
from support.one_run import EVEN
from support.refusals import assert_refused
from support.worker_pool import job, settings, simulated
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.tracking import records
from pipetrain.runner.training.components.learning_rate import build_rate, rates_by_stage
from pipetrain.runner.training.components.optimizer_step import try_step
from pipetrain.runner.training.timetable import timetable_of


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
    assert_refused("Muon takes real matrices", try_step, OptimizerSettings.of(muon), weights, device="cpu")


TIED = {"_target_": "support.tied_model.build"}


def prepared(tmp_path, *groups, method="gpipe", optimizer=None, **changes):
    chosen = {**(optimizer or {}), "groups": list(groups)}
    return one_run.prepared(tmp_path, method, **{"optimizer": chosen, **changes})


def test_note_says_how_many_parameters_each_group_has(tmp_path):
    groups = ({"match": "6.*", "lr_scale": 0.5, "nesterov": True}, {"max_dims": 1, "weight_decay": 0})
    notes = prepared(tmp_path, *groups).notes
    assert notes[:3] == [
        "optimizer.groups[0] (match=6.*): 2 tensors with 28 parameters; lr_scale=0.5, nesterov=true",
        "optimizer.groups[1] (max_dims=1): 10 tensors with 96 parameters; weight_decay=0",
        "optimizer.groups: 7 tensors with 1,038 parameters in none of them",
    ]


def test_group_without_options_exempts_from_later_ones(tmp_path):
    notes = prepared(tmp_path, {"match": "6.*"}, {"max_dims": 1, "weight_decay": 0}).notes
    assert notes[0] == "optimizer.groups[0] (match=6.*): 2 tensors with 28 parameters; no other options"


def test_momentum_and_delays_of_stages_are_noted(tmp_path):
    optimizer = {"lr_by_delay": 9, "momentum_by_stage": [0.5, 0.9]}
    assert prepared(tmp_path, method="pipedream", optimizer=optimizer).notes[:2] == [
        "optimizer.lr_by_delay=9: no delay above 1",
        "optimizer.momentum_by_stage=[0.5, 0.9]: momentum from 0.7 on stage 0 to 0.5 on stage 1",
    ]


class Normalized(torch.optim.SGD):
    """Divides the gradients by their norm over all weights, as LAMB does."""

    def step(self, closure=None):
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        nn.utils.clip_grad_norm_(weights, 0.1)
        return super().step(closure)


def test_steps_that_depend_on_other_weights_of_the_stage_are_noted_and_refused_with_ties(tmp_path):
    optimizer = {"_target_": f"{__name__}.Normalized", "momentum": 0.9, "lr": 0.1}
    told = f"warning: a step of {__name__}.Normalized for one weight depends on other"
    assert any(note.startswith(told) for note in prepared(tmp_path, optimizer=optimizer).notes)
    alone = prepared(tmp_path, optimizer=optimizer, partition={**EVEN, "stages": 1}).notes
    assert not any(note.startswith(told) for note in alone)
    assert_refused(r"its stage, .*; model.untie=true", prepared, tmp_path, optimizer=optimizer, model=TIED)


class Noisy(torch.optim.SGD):
    """Adds noise to the weights."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(torch.randn_like(weight), alpha=1e-3)


def test_random_steps_are_noted(tmp_path):
    optimizer = {"_target_": f"{__name__}.Noisy", "momentum": 0.9, "lr": 0.1}
    assert any(note.startswith(f"warning: {__name__}.Noisy draws random numbers") for note in
               prepared(tmp_path, optimizer=optimizer).notes)  # fmt: skip


class ByDimensions(torch.optim.Optimizer):
    """Two optimizers inside, each of which refuses an empty list."""

    def __init__(self, params, lr=0.01):
        params = list(params)
        super().__init__(params, {"lr": lr})
        kinds = ((torch.optim.Muon, True), (torch.optim.AdamW, False))
        self.parts = [kind([p for p in params if (p.ndim == 2) is wanted], lr=lr) for kind, wanted in kinds]

    @torch.no_grad()
    def step(self):
        for part in self.parts:
            part.step()


def test_optimizer_that_needs_weights_of_several_kinds_is_tried_with_all_of_them(tmp_path):
    assert prepared(tmp_path, optimizer={"_target_": f"{__name__}.ByDimensions", "lr": 0.1})


class OnDevicesAlone(torch.optim.SGD):
    """As optimizers whose kernels have no version for the CPU."""

    def step(self, closure=None):
        if any(weight.is_cpu for group in self.param_groups for weight in group["params"]):
            raise RuntimeError("no kernel")
        return super().step(closure)


def test_optimizer_that_refuses_the_cpu_is_tried_on_the_device_of_the_run():
    target = Target("optimizer", f"{__name__}.OnDevicesAlone", {"lr": 0.1})
    tried = partial(try_step, OptimizerSettings(0.1, target=target), {"w": torch.zeros(2)})
    assert tried(device="meta")["w"].is_meta
    with pytest.raises(RuntimeError, match="no kernel"):
        tried(device="cpu")


def test_rate_is_the_optimizers_scaled_by_its_schedule():
    chosen = settings("gpipe", optimizer={"lr": 0.5}, train={"epochs": 1})
    rate = build_rate(chosen, timetable_of(chosen, 4))
    factors = [chosen.lr_schedule.build().factor(step, 4, 4) for step in range(4)]
    assert [rate(step) for step in range(4)] == [0.5 * factor for factor in factors]
    assert factors[0] > factors[-1]
    with pytest.raises(ConfigError, match=r"optimizer.lr=null: .*, such as optimizer.lr=0.01"):
        build_rate(settings("gpipe", optimizer={"lr": None}), timetable_of(chosen, 4))
