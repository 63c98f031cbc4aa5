"""Methods and optimizers with settings of their own: the same bits simulated, distributed and resumed."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest
import torch
from support.cli import refused
from support.equal_bits import TIED, assert_same, bits, both_ways, same_resumed
from support.methods import METHODS, MethodCase
from support.worker_pool import distributed, job, phase, simulated

from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.methods.lwp import LinearWeightPrediction
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.schedules.base import Family, ListSchedule
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.operation import backward, forward, update
from pipetrain.runner.training.checkpoint import contents, store, tensor_file
from pipetrain.runner.training.checkpoint.contents import Kind

ADAM = {"_target_": "torch.optim.Adam", "lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.01}
GROUPS = [{"max_dims": 1, "weight_decay": 0.0, "betas": [0.7, 0.9], "lr_scale": 2.0}]
VECTORS = [{"max_dims": 1, "weight_decay": 0.0, "lr_scale": 2.0}]
OF_BIASES = {"max_dims": 1, "weight_decay": 0, "lr_scale": 2.0}
SGD = {"weight_decay": 0.1, "groups": [{"match": "6.*", "nesterov": True}, OF_BIASES]}
ADAMW = {
    "_target_": "torch.optim.AdamW", "lr": 0.01, "weight_decay": 0.1,
    "groups": [{"match": ["0.*", "*.lstm.*"], "betas": [0.5, 0.9], "lr_scale": 0.5}, OF_BIASES],
}  # fmt: skip
NADAM = {"_target_": "torch.optim.NAdam", "lr": 0.01, "betas": [0.9, 0.99]}
BY_STAGE = {**NADAM, "lr_by_delay": 6, "momentum_by_stage": [0.5, 0.9]}
PAIRS = {"microbatches": 2, "epochs": 2}
COMPLEX = {
    "model": {"_target_": "support.complex_model.build"},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.01, "clip_norm": 0.5, "error_feedback": 0.2},
    "train": {"ema": 0.9},
    "log": {"staleness_every_steps": 2},
    "partition": {"replicas": [2, 1]},
}
STASH = METHODS["lwp_stash"]
POLYAK = {"method": {"_target_": "support.polyak.Polyak"}}


def forms(form):
    return MethodCase(PipeOptim(form), OneFOneB())


class Run(NamedTuple):
    """A method, stages and settings; `without` names optimizer settings that change the bits."""

    case: MethodCase | str
    stages: int
    settings: dict
    without: tuple[str, ...] = ()


QUICK = {
    # the lowest version of safetensors has no complex numbers
    **({"complex": Run("pipeoptim", 2, COMPLEX)} if tensor_file.takes(torch.complex64) else {}),
    "lwp stash": Run(STASH, 3, {"train": PAIRS}),
    "own statistic": Run("naive_async", 2, POLYAK),
    "decaying": Run(forms("decaying"), 3, {"optimizer": {**ADAM, "groups": GROUPS, "momentum_by_stage": [0.5, 0.9]}}),
}
SLOW = {
    "lwp": Run(MethodCase(LinearWeightPrediction(), OneFOneB()), 2, {"train": PAIRS}),
    "delayed": Run(MethodCase(Delayed([3, 1]), OneFOneB(depth=1)), 2, {"train": PAIRS}),
    "delayed by 4": Run(MethodCase(Delayed(4), OneFOneB(depth=1)), 2, {}),
    "lwp stash 4": Run(STASH, 4, {}),
    "lwp stash recomputing": Run(STASH, 4, {"train": {"recompute": True}}),
    "lwp stash replicas": Run(STASH, 2, {"partition": {"replicas": [2, 1]}}),
    "lwp stash all replicas": Run(STASH, 3, {"partition": {"replicas": [2, 2, 2]}, "train": PAIRS}),
    **{
        f"{form} {name}": Run(forms(form), *rest)
        for form in ("scheduled", "decaying")
        for name, rest in {
            "4": (4, {"train": PAIRS}),
            "groups": (2, {"partition": {"replicas": [2, 1]}, "optimizer": {**ADAM, "groups": GROUPS}}),
            "replicas": (2, {"partition": {"replicas": [2, 2]}, "train": PAIRS}),
        }.items()
    },
    **{
        f"by stage {method}": Run(method, stages, {"optimizer": BY_STAGE}, ("lr_by_delay", "momentum_by_stage"))
        for method, stages in (("pipeoptim", 3), ("pipedream", 4), ("stale", 4))
    },
    **{
        name: Run(
            "pipedream", 2, {"optimizer": {**section, "groups": VECTORS, "clip_norm": 0.5}, "train": {"epochs": 2}}
        )
        for name, section in {
            "muon": {"_target_": "pipetrain.zoo.optim.matrices.Muon", "lr": 0.02},
            "soap": {"_target_": "pipetrain.zoo.optim.matrices.Soap", "lr": 0.01, "frequency": 2},
        }.items()
    },
    **{
        f"groups {name}": Run(method, stages, settings, ("groups",))
        for name, (method, stages, settings) in {
            "pipeoptim": ("pipeoptim", 2, {"optimizer": ADAMW}),
            "spectrain": ("spectrain", 2, {"optimizer": {"groups": [OF_BIASES]}}),
            "phases": (
                "gpipe",
                2,
                {"phases": [phase("gpipe", steps=4), phase("pipemare")], "optimizer": {**SGD, "clip_norm": 0.5}},
            ),
            "replicas": ("pipeoptim", 2, {"partition": {"replicas": [2, 1]}, "optimizer": SGD}),
            "tied": (
                "gpipe",
                2,
                {**TIED, "optimizer": {"groups": [{"match": "encoder.*", "lr_scale": 0.1}, OF_BIASES]}},
            ),
        }.items()
    },
    "by stage replicas": Run(
        "pipeoptim",
        2,
        {
            "partition": {"replicas": [2, 1]},
            "train": PAIRS,
            "optimizer": {**BY_STAGE, "groups": [{"max_dims": 1, "betas": [0.1, 0.9]}]},
        },
    ),
    **{
        f"error feedback {method}": Run(
            method, 2, {"optimizer": {"error_feedback": 1.0, "lr": 0.02}, "train": PAIRS}, ("error_feedback",)
        )
        for method in ("pipedream_2bw", "pipeoptim", "gpipe")
    },
}


@pytest.mark.parametrize(
    "runs", [pytest.param(QUICK, id="quick"), pytest.param(SLOW, id="slow", marks=pytest.mark.slow)]
)
def test_runs_have_equal_bits_in_both_executors_and_resumed(tmp_path, runs):
    changes = {name: {"checkpoint": {"every_epochs": 1}, **run.settings} for name, run in runs.items()}
    jobs = [job(tmp_path / name / "other", run.case, run.stages, **changes[name]) for name, run in runs.items()]
    for (name, run), other in zip(runs.items(), distributed(jobs), strict=True):
        whole = same_resumed(tmp_path / name, run.case, run.stages, **changes[name])
        assert_same(other, whole, name)
        if name in ("muon", "soap"):
            assert whole["final"]["loss"] < 1.5
        for left_out in run.without:
            fewer = {**run.settings, "optimizer": {**run.settings["optimizer"], left_out: None}}
            assert bits(simulated(job(tmp_path / name / left_out, run.case, run.stages, **fewer))) != bits(whole), name


def test_parameter_groups_continue_after_another_cut(tmp_path):
    changes = {"optimizer": ADAMW, "checkpoint": {"every_steps": 4}}
    simulated(job(tmp_path / "whole", "gpipe", 2, **changes))
    half = store.at_step(tmp_path / "whole", 4)
    simulated(job(tmp_path / "again", "gpipe", 3, resume=half, **changes))
    whole, again = (contents.model_state(store.checkpoints(tmp_path / name)[-1]) for name in ("whole", "again"))
    assert all(torch.allclose(again[name], value, rtol=1e-5, atol=1e-6) for name, value in whole.items())
    plain = {**changes, "optimizer": {**ADAMW, "groups": None}}
    simulated(job(tmp_path / "other", "gpipe", 3, resume=half, **plain))
    other = contents.model_state(store.checkpoints(tmp_path / "other")[-1])
    assert not torch.allclose(other["6.bias"], whole["6.bias"], rtol=1e-3)


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


def test_statistic_of_another_package_has_the_names_of_the_weights_and_loads_into_another_partition(tmp_path):
    changes = {**POLYAK, "checkpoint": {"every_epochs": 1}}
    whole = simulated(job(tmp_path / "two", "naive_async", 2, **changes))
    assert bits(simulated(job(tmp_path / "plain", "naive_async", 2))) != bits(whole)
    half, end = store.checkpoints(tmp_path / "two")
    found = contents.load_tensors(half, Kind.STATISTIC)
    assert {key for values in found.values() for key in values} == {"polyak"}
    assert found.keys() == contents.load_tensors(half, Kind.OPTIMIZER).keys()
    simulated(job(tmp_path / "three", "naive_async", 3, resume=half, **changes))
    folders = half, end, store.checkpoints(tmp_path / "three")[-1]
    counts = [
        {int(values["polyak"][-1]) for values in contents.load_tensors(folder, Kind.STATISTIC).values()}
        for folder in folders
    ]
    assert counts == [{7}, {13}, {13}], "of versions"


@pytest.mark.slow
def test_layers_in_place_and_gradients_in_the_forward_have_equal_bits_in_both_executors(tmp_path):
    model = {"_target_": "support.own_habits_model.build"}
    methods = {"gpipe": 2, "pipedream": 1, "pipeoptim": 2, "pipemare": 1}
    once = {method: {"train": {"microbatches": n, "epochs": 1}} for method, n in methods.items()}
    both_ways([job(tmp_path / method, method, 3, model=model, **changes) for method, changes in once.items()])


@dataclass(frozen=True)
class LastFirst(ListSchedule):
    """GPipe with the backwards in reverse order."""

    name: ClassVar[str] = "last_first"
    family: ClassVar[Family] = Family.SYNCHRONOUS

    def in_flight(self, _r, _D, N):
        return N

    def operations(self, _r, _D, N, M):
        backwards = [[backward(t, j) for j in reversed(range(N))] for t in range(M)]
        return [op for t in range(M) for op in (*(forward(t, j) for j in range(N)), *backwards[t], update(t))]


def test_replicas_average_whole_gradients_in_any_order_of_backwards(tmp_path):
    settings = {"partition": {"replicas": [2]}, "train": {"microbatches": 2, "epochs": 1}}
    both_ways([job(tmp_path, MethodCase(Synchronous(), LastFirst()), 1, **settings)])


class Reversed(OneFOneB):
    def operations(self, r, D, N, M):
        return super().operations(r, D, N, M)[::-1]


def test_run_under_a_wrong_schedule_is_refused_and_leaves_nothing(tmp_path):
    target = f"schedule._target_={__name__}.Reversed"
    words = ["method=naive_async", "schedule=1f1b", target, "model=lenet5", "partition.stages=2"]
    refused("run", *words, f"hydra.run.dir={tmp_path / 'run'}", cwd=tmp_path, message=f"{target}: its lists")
    assert not (tmp_path / "run").exists()
