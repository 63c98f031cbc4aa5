"""The typed settings that a configuration holds."""

from dataclasses import FrozenInstanceError

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain.config.settings import settings_of
from pipetrain.errors import ConfigError
from pipetrain.run.compose import composed


def test_settings_have_the_types_and_values_of_the_command_line():
    settings = composed(["train.batch_size=32", "optimizer.clip_norm=1", "model=lenet5", "launch.hang_timeout=5"])
    assert settings.train.batch_size == 32
    assert (settings.optimizer.lr, settings.optimizer.clip_norm) == (0.05, 1)
    assert settings.launch.hang_timeout == 5.0
    assert settings.model.path == "pipetrain.models.lenet.build"
    assert (settings.choices["model"], settings.choices["method"]) == ("lenet5", "pipeoptim")
    assert not settings.executor.simulated


def test_settings_cannot_be_changed():
    settings = composed([])
    with pytest.raises(FrozenInstanceError):
        settings.train.epochs = 3


def test_loader_settings_are_taken_for_a_data_set_of_the_users_own():
    words = ["dataset=custom", "dataset._target_=mylib.Data", "+dataset.root=here", "dataset.shuffle=false"]
    settings = composed([*words, "dataset.limit=20", "dataset.workers=2"])
    assert (settings.dataset.shuffle, settings.dataset.limit, settings.dataset.workers) == (False, 20, 2)
    assert (settings.dataset.target.path, settings.dataset.target.options) == ("mylib.Data", {"root": "here"})


def test_rate_and_clipping_are_taken_for_an_optimizer_of_the_users_own():
    words = ["optimizer=custom", "optimizer._target_=mylib.Lamb", "optimizer.lr=0.1", "optimizer.clip_norm=2"]
    settings = composed(words)
    assert (settings.optimizer.lr, settings.optimizer.clip_norm) == (0.1, 2)
    assert settings.optimizer.target.options == {"lr": 0.1}


def test_stored_settings_read_back_are_equal():
    settings = composed(["phases=[{method: gpipe, schedule: gpipe, epochs: 1}, {}]", "method=pipemare"])
    again = settings_of(OmegaConf.create(dict(settings.stored)), settings.choices)
    assert again == settings
    assert [phase.choices["method"] for phase in again.phases] == ["gpipe", "pipemare"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.shuffle=3", "dataset.shuffle=3: true or false"),
        ("optimizer.lr=fast", "optimizer.lr=fast: a number, or null"),
        ("optimizer.clip_norm=true", "optimizer.clip_norm=True: a number, or null"),
        ("executor.name=cloud", "executor.name=cloud: one of distributed, simulated"),
        ("device=tpu", "device=tpu: one of auto, cpu, cuda"),
        ("eval.every_epochs=-1", "eval.every_epochs=-1: at least 0"),
        ("launch.hang_timeout=0", r"launch.hang_timeout=0.0: seconds above 0"),
    ],
)
def test_setting_that_cannot_work_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        composed([override])


def test_unknown_setting_of_a_stored_configuration_is_refused():
    settings = composed([])
    with pytest.raises(OmegaConfBaseException, match="pace"):
        settings_of(OmegaConf.create({**settings.stored, "pace": 3}), settings.choices)
