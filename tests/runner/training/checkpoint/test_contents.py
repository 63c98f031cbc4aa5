"""Whether a checkpoint fits the run that would go on from it."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.refusals import assert_refused
from support.worker_pool import job, settings, simulated
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.optimizer import OptimizerSettings, ParameterGroup
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.model import build_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A job that has run with Adam, and its last checkpoint."""
    folder = tmp_path_factory.mktemp("made")
    ran = job(folder, "pipedream", 2, optimizer={"_target_": "torch.optim.Adam", "lr": 0.01}, train={"max_steps": 2})
    simulated(ran)
    return ran, store.newest_undamaged(str(folder))


def adam(*groups, **options):
    target = Target("optimizer", "torch.optim.Adam", {"lr": 0.01, **options})
    return OptimizerSettings(0.01, target=target, groups=groups)


def test_weight_of_another_shape_is_named_with_both(made):
    ran, folder = made
    chain = build_model(ran.settings, build_data(ran.settings).dataset)
    name = "0.weight"
    chain.module[0] = nn.Conv2d(1, 5, 3)
    message = f"{folder}: was saved from another model; {name} is (6, 1, 3, 3) there and (5, 1, 3, 3) here"
    assert_refused(re.escape(message), contents.check_model, folder, chain)


def test_settings_that_need_no_other_state_fit(made):
    contents.check_optimizer(made[1], adam(betas=[0.8, 0.9], weight_decay=0.1))


def test_settings_that_need_other_state_are_refused(made):
    with pytest.raises(ConfigError, match=r"torch.optim.Adam cannot continue .*KeyError"):
        contents.check_optimizer(made[1], adam(amsgrad=True))


@pytest.mark.parametrize("condition", [{"max_dims": 1}, {"match": "1.conv.weight"}])
def test_group_that_needs_other_state_is_refused(made, condition):
    contents.check_optimizer(made[1], adam(ParameterGroup.of("optimizer.groups[0]", {**condition, "eps": 1e-3})))
    with pytest.raises(ConfigError, match=r"torch.optim.Adam cannot continue .*KeyError"):
        contents.check_optimizer(
            made[1], adam(ParameterGroup.of("optimizer.groups[0]", {**condition, "amsgrad": True}))
        )


def test_differing_vocabulary_is_refused_but_not_an_unsaved_one(made):
    _, folder = made
    progress = store.load_progress(folder)
    store.check_vocabulary(folder, progress, SimpleNamespace(vocabulary_sha256="b"))
    progress["vocabulary_sha256"] = "a"
    store.check_vocabulary(folder, progress, SimpleNamespace(vocabulary_sha256="a"))
    for other in (SimpleNamespace(vocabulary_sha256="b"), SimpleNamespace()):
        assert_refused(r"dataset: its vocabulary .*step-", store.check_vocabulary, folder, progress, other)


def test_checkpoint_is_compared_with_the_samples_that_it_records(tmp_path):
    ran = job(tmp_path / "run", "gpipe", 2)
    data = build_data(ran.settings)
    ran = replace(ran, data=data.fingerprints())
    simulated(ran)
    folder = store.newest_undamaged(ran.run.path)
    progress = store.load_progress(folder)
    store.check_data(folder, progress, {"train": data.train, "eval": data.evaluation}, "stop")
    other = build_data(settings("gpipe", dataset={"train": 22, "eval": 9}))
    words = r"the number of samples of its `eval` is 9, and was 10 for the run of .*; stop"
    assert_refused(words, store.check_data, folder, progress, {"eval": other.evaluation}, "stop")
    other = build_data(settings("gpipe", dataset={"train": 22, "classes": 3}))
    assert_refused(
        r"of sample .* of its `train` is", store.check_data, folder, progress, {"train": other.train}, "stop"
    )
