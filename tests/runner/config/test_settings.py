"""The typed settings that a configuration holds."""

from dataclasses import FrozenInstanceError

import pytest
from omegaconf import OmegaConf
from support.refusals import assert_refused

from pipetrain.runner.config.choices import choices_of
from pipetrain.runner.config.composition import check_hydra, composed, settings_of
from pipetrain.runner.config.optimizer import OptimizerSettings


def test_settings_have_the_types_and_values_of_the_command_line_and_cannot_be_changed():
    settings = composed(["train.batch_size=32", "optimizer.clip_norm=1", "model=lenet5", "launch.hang_timeout=5"])
    assert settings.train.batch_size == 32
    assert (settings.optimizer.lr, settings.optimizer.clip_norm) == (0.05, 1)
    assert settings.launch.hang_timeout == 5.0
    assert settings.model.target.path == "pipetrain.zoo.models.small_images.lenet5"
    assert settings.model.target.options == {}, "what the data say is no option"
    assert (settings.choices["model"], settings.choices["method"]) == ("lenet5", "pipeoptim")
    assert not settings.executor.simulated
    with pytest.raises(FrozenInstanceError):
        settings.train.epochs = 3


def test_settings_of_all_data_sets_and_optimizers_apply_to_custom_ones():
    dataset = ["dataset=custom", "dataset._target_=mylib.Data", "+dataset.root=here", "dataset.shuffle=false"]
    optimizer = ["optimizer=custom", "optimizer._target_=mylib.Lamb", "optimizer.lr=0.1", "optimizer.clip_norm=2"]
    model = ["model=lenet5", "model.classes=5", "model.size=[28,32]"]
    settings = composed([*dataset, *optimizer, *model, "dataset.limit=20", "dataset.workers=2"])
    assert (settings.dataset.shuffle, settings.dataset.limit, settings.dataset.workers) == (False, 20, 2)
    assert (settings.dataset.prefetch, settings.dataset.pin_memory) == (None, False)
    assert (settings.dataset.target.path, settings.dataset.target.options) == ("mylib.Data", {"root": "here"})
    assert (settings.optimizer.lr, settings.optimizer.clip_norm) == (0.1, 2)
    assert settings.optimizer.target.options == {"lr": 0.1}
    assert settings.model.target.options == {"classes": 5, "size": [28, 32]}
    assert (settings.stored["model"]["classes"], settings.stored["model"]["channels"]) == (5, None)


def test_stored_settings_read_back_are_equal():
    settings = composed(["phases=[{method: gpipe, schedule: gpipe, epochs: 1}, {}]", "method=pipemare"])
    again = settings_of(OmegaConf.create(dict(settings.stored)), settings.choices)
    assert again == settings
    assert [phase.choices["method"] for phase in again.phases] == ["gpipe", "pipemare"]


def test_preset_of_phases_that_is_written_out_refers_to_nothing():
    stored = composed(["method=pipemare_w", "method.decay=0.3"]).stored
    assert settings_of(OmegaConf.create(dict(stored)), {}).phases[1].method.options["decay"] == 0.3


def test_unread_setting_of_hydra_section_is_refused():
    check_hydra(OmegaConf.create({"run": {"dir": "here"}, "env": {}}))
    assert_refused(r"hydra\.run\.dri: no such setting", check_hydra, OmegaConf.create({"run": {"dri": "here"}}))


def optimizer(path, **options):
    return OptimizerSettings.of({"_target_": path, "clip_norm": None, "lr": None, **options})


def test_adafactor_takes_two_numbers_for_eps():
    assert optimizer("torch.optim.Adafactor", eps=[None, 1e-3]).target.options["eps"] == [None, 1e-3]


@pytest.mark.parametrize(
    ("name", "dims", "number"),
    [
        ("h.0.norm.bias", 1, 2),
        ("h.0.attn.weight", 2, 1),
        ("h.11.attn.weight", 2, 0),
        ("head.scale", 0, 1),
        ("h.0.attn.cube", 3, 0),
    ],
)
def test_parameter_is_in_first_group_whose_conditions_it_meets(name, dims, number):
    groups = [{"match": ["h.0.attn.*", "*.scale"], "max_dims": 2}, {"max_dims": 1}]
    assert optimizer("torch.optim.SGD", groups=groups).group_of(name, dims) == number


@pytest.mark.parametrize("choice", list(choices_of("optimizer")), ids=lambda choice: choice.name)
def test_options_of_every_choice_are_in_range(choice):
    OptimizerSettings.of({"clip_norm": None, **choice.content})


def test_options_of_an_optimizer_of_the_users_own_are_its_own():
    optimizer("mylib.Lamb", momentum=3, betas=0.9, lr=0.1)
    assert_refused(r"optimizer.lr=-1", optimizer, "mylib.Lamb", lr=-1)
