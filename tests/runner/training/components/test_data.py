"""The objects that settings name."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.equal_bits import both_ways
from support.methods import MethodCase
from support.worker_pool import job, settings
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.loss import build_loss
from pipetrain.runner.training.components.model import build_model
from pipetrain.runner.training.components.optimizer import build_rate, build_torch_optimizer
from pipetrain.runner.training.components.pipeline import (
    build_partition_rule,
    build_pipeline_rules,
    build_recompute_segments,
)
from pipetrain.runner.training.timetable import timetable_of


def test_loss_that_sums_over_samples_is_refused():
    summing = {"_target_": "torch.nn.CrossEntropyLoss", "reduction": "sum"}
    with pytest.raises(ConfigError, match=r"loss._target_=torch.nn.CrossEntropyLoss: it sums .*; reduction=mean works"):
        build_loss(settings("gpipe", loss=summing), None)


def test_model_takes_open_settings_from_dataset():
    dataset = build_data(settings("gpipe")).dataset
    assert build_model(settings("gpipe"), dataset).layers[-1].out_features == dataset.classes == 4
    own = settings("gpipe", model={"_target_": "support.small_model.build", "classes": 7})
    assert build_model(own, dataset).layers[-1].out_features == 7


def test_initial_weights_depend_on_the_seed_alone():
    dataset = build_data(settings("gpipe")).dataset
    first = build_model(settings("gpipe", seed=1), dataset).module.state_dict()
    torch.rand(3)
    again = build_model(settings("gpipe", seed=1), dataset).module.state_dict()
    other = build_model(settings("gpipe", seed=2), dataset).module.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def drawn():
    """Splits that all three default generators draw."""
    whole = [(torch.rand(1, 8, 8), label % 4) for label in range(20)]
    random.shuffle(whole)
    numbers = np.random.permutation(20)
    split = torch.utils.data.random_split([whole[number] for number in numbers], [16, 4])
    return SimpleNamespace(train=split[0], eval=split[1], classes=4)


def test_seed_draws_the_data_set_and_leaves_generators_as_they_were():
    def built(seed):
        data = build_data(settings("gpipe", dataset={"_target_": f"{__name__}.drawn"}, seed=seed))
        return torch.cat([inputs for (inputs,) in data.train.inputs(0)])

    first = built(1)
    torch.rand(3), random.random(), np.random.rand()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(built(1), first)
    assert not torch.equal(built(2), first)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_processes_and_executors_draw_the_same_data_set(tmp_path):
    both_ways([job(tmp_path / "drawn", "pipedream", 2, dataset={"_target_": f"{__name__}.drawn"}, train={"epochs": 1})])


class DrawsElsewhere(nn.Sequential):
    """Draws its weights with numpy, and a permutation with Python's own generator."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 4))
        self.order = random.sample(range(50), 50)
        self[1].weight.data = torch.from_numpy(np.random.randn(4, 64)).float()


def test_seed_draws_initial_weights_of_all_default_generators():
    dataset = build_data(settings("gpipe")).dataset
    model = {"_target_": f"{__name__}.DrawsElsewhere"}
    first, again, other = (build_model(settings("gpipe", seed=seed, model=model), dataset).module for seed in (1, 1, 2))
    assert torch.equal(first[1].weight, again[1].weight)
    assert first.order == again.order
    assert not torch.equal(first[1].weight, other[1].weight)
    assert first.order != other.order


def test_data_set_without_a_split_is_refused_by_its_target():
    loader = {"shuffle": True, "limit": None, "workers": 0}
    with pytest.raises(
        ConfigError, match=r"dataset._target_=builtins.dict: returned a dict of nothing, without the split `train`"
    ):
        build_data(settings("gpipe", dataset={"_target_": "builtins.dict", **loader}))


def empty():
    """A data set without samples to train on."""
    return SimpleNamespace(train=[], eval=[1])


def test_empty_data_set_is_refused_by_its_target():
    loader = {"shuffle": True, "limit": None, "workers": 0}
    with pytest.raises(ConfigError, match=rf"dataset._target_={__name__}.empty: its `train` is empty"):
        build_data(settings("gpipe", dataset={"_target_": f"{__name__}.empty", **loader}))


def test_minibatch_larger_than_epoch_is_refused_with_limit():
    limited = settings("gpipe", dataset={"limit": 3})
    with pytest.raises(ConfigError, match=r"train.batch_size=4: more than the 3 samples .*, with dataset.limit=3"):
        build_data(limited)


@pytest.mark.parametrize(
    ("section", "build"),
    [
        ("method", lambda chosen: build_pipeline_rules(chosen.phases[0], 2, 1, None)),
        ("schedule", lambda chosen: build_pipeline_rules(chosen.phases[0], 2, 1, None)),
        ("loss", lambda chosen: build_loss(chosen, None)),
        ("partition", build_partition_rule),
        ("lr_schedule", lambda chosen: build_rate(chosen, timetable_of(chosen, 6))),
    ],
)
def test_target_returning_wrong_type_is_refused(section, build):
    with pytest.raises(ConfigError, match=rf"{section}\._target_=builtins\.dict: returned dict, not a "):
        build(settings("gpipe", **{section: {"_target_": "builtins.dict"}}))


def test_optimizer_that_evaluates_the_model_again_is_refused():
    chosen = settings("gpipe", optimizer={"_target_": "torch.optim.LBFGS", "lr": 0.1}).optimizer
    with pytest.raises(ConfigError, match=r"torch.optim.LBFGS: its steps evaluate the model again"):
        build_torch_optimizer(chosen, [nn.Parameter(torch.zeros(2))])


def test_evaluation_messages_are_of_a_microbatch_unless_set():
    data = build_data(settings("gpipe", train={"microbatches": 2}))
    assert (data.train.sizes(0), data.evaluation.sizes(0)) == ([4] * 5 + [2], [2] * 5)
    assert build_data(settings("gpipe", eval={"batch_size": 7})).evaluation.sizes(0) == [7, 3]


@pytest.mark.parametrize(
    ("method", "schedule", "works"),
    [
        ("gpipe", "pipedream", r"use schedule=1f1b_flush, data_parallel, gpipe, .* or method=.*naive_async, pipedream"),
        ("pipedream_2bw", "gpipe", r"use schedule=1f1b_2bw, or method=asp, data_parallel, gpipe"),
    ],
)
def test_method_and_schedule_mismatch_is_refused_with_fits(method, schedule, works):
    case = MethodCase(MethodCase.named(method).method, MethodCase.named(schedule).schedule)
    (phase,) = settings(case).phases
    with pytest.raises(ConfigError, match=rf"^method=\w+ does not work with schedule=\w+; {works}"):
        build_pipeline_rules(phase, 2, 2, None)


def test_recomputation_is_by_segments_by_stages_or_not_at_all():
    stage_of = {0: 0, 2: 1, 5: 2}

    def build(**train):
        return build_recompute_segments(settings("gpipe", train=train).train, 3, stage_of)

    assert build() is None
    assert build(recompute=True) == RecomputeSegments((0, 1, 2), 3)
    assert build(recompute_boundaries=[5]) == RecomputeSegments((0, 2), 3)
    with pytest.raises(ConfigError, match=r"layer 3 is not the first .* at layers 0, 2, 5$"):
        build(recompute_boundaries=[2, 3])


def test_rate_is_the_optimizers_scaled_by_its_schedule():
    chosen = settings("gpipe", optimizer={"lr": 0.5}, train={"epochs": 1})
    rate = build_rate(chosen, timetable_of(chosen, 4))
    factors = [chosen.lr_schedule.build().factor(step, 4, 4) for step in range(4)]
    assert [rate(step) for step in range(4)] == [0.5 * factor for factor in factors]
    assert factors[0] > factors[-1]
    with pytest.raises(ConfigError, match=r"optimizer.lr is not set; .*: optimizer.lr=0.01"):
        build_rate(settings("gpipe", optimizer={"lr": None}), timetable_of(chosen, 4))


def test_optimizer_that_is_none_of_torchs_is_refused():
    chosen = settings("gpipe", optimizer={"_target_": "builtins.dict", "lr": 0.1})
    with pytest.raises(ConfigError, match=r"optimizer._target_=builtins.dict: "):
        build_torch_optimizer(chosen.optimizer, [nn.Parameter(torch.ones(2))])


@pytest.mark.parametrize(("given", "expected"), [({"ignore_index": None}, 3), ({"ignore_index": 7}, 7), ({}, None)])
def test_token_loss_ignores_dataset_padding_by_default(given, expected):
    chosen = settings("gpipe", loss={"_target_": "pipetrain.engine.losses.TokenCrossEntropy", **given})
    assert build_loss(chosen, SimpleNamespace(padding=3)).ignore_index == expected


def test_function_that_is_the_loss_and_no_factory_is_refused():
    chosen = settings("gpipe", loss={"_target_": "torch.nn.functional.mse_loss"})
    with pytest.raises(
        ConfigError, match=r"mse_loss: is called once, to make the loss, and needs input, target; name a"
    ):
        build_loss(chosen, None)


def test_class_weight_list_becomes_a_tensor_in_the_loss():
    weighted = {"_target_": "torch.nn.CrossEntropyLoss", "weight": [1, 0.5]}
    assert torch.equal(build_loss(settings("gpipe", loss=weighted), None).weight, torch.tensor([1.0, 0.5]))
    with pytest.raises(ConfigError, match=r"^loss.weight=\[1, 'a'\]: a list of numbers is needed$"):
        build_loss(settings("gpipe", loss={**weighted, "weight": [1, "a"]}), None)
