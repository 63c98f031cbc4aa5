"""The typed settings that a configuration holds."""

import re
from dataclasses import FrozenInstanceError

import pytest
from omegaconf import OmegaConf

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.choices import choices_of
from pipetrain.runner.config.composition import check_hydra, composed, settings_of
from pipetrain.runner.config.optimizer import OptimizerSettings


def test_settings_have_the_types_and_values_of_the_command_line():
    settings = composed(["train.batch_size=32", "optimizer.clip_norm=1", "model=lenet5", "launch.hang_timeout=5"])
    assert settings.train.batch_size == 32
    assert (settings.optimizer.lr, settings.optimizer.clip_norm) == (0.05, 1)
    assert settings.launch.hang_timeout == 5.0
    assert settings.model.target.path == "pipetrain.zoo.models.small_images.lenet5"
    assert (settings.choices["model"], settings.choices["method"]) == ("lenet5", "pipeoptim")
    assert not settings.executor.simulated


def test_settings_cannot_be_changed():
    settings = composed([])
    with pytest.raises(FrozenInstanceError):
        settings.train.epochs = 3


def test_loader_settings_apply_to_custom_dataset():
    words = ["dataset=custom", "dataset._target_=mylib.Data", "+dataset.root=here", "dataset.shuffle=false"]
    settings = composed([*words, "dataset.limit=20", "dataset.workers=2"])
    assert (settings.dataset.shuffle, settings.dataset.limit, settings.dataset.workers) == (False, 20, 2)
    assert (settings.dataset.prefetch, settings.dataset.pin_memory) == (None, False)
    assert (settings.dataset.target.path, settings.dataset.target.options) == ("mylib.Data", {"root": "here"})


def test_rate_and_clipping_apply_to_custom_optimizer():
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
        ("optimizer.lr=fast", "optimizer.lr=fast: a number above 0"),
        ("optimizer.clip_norm=true", r"optimizer.clip_norm=true: .*above 0.*null"),
        ("executor.name=cloud", "executor.name=cloud: one of distributed, simulated"),
        ("device=tpu", "device=tpu: one of auto, cpu, cuda"),
        ("eval.every_epochs=-1", "eval.every_epochs=-1: at least 0"),
        ("launch.hang_timeout=0", r"launch.hang_timeout=0.0: .*above 0"),
    ],
)
def test_setting_that_cannot_work_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        composed([override])


def test_target_metric_of_a_run_that_never_evaluates_is_refused():
    with pytest.raises(ConfigError, match=r"train.target=.*: eval.every_epochs=0 evaluates nothing"):
        composed(["train.target={top1: 50}", "eval.every_epochs=0"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+methd=gpipe", r"methd=gpipe: .* method\?"),
        ("+train.eopchs=3", r"train.eopchs=3: .* train.epochs\?"),
        ("+trian.epochs=3", r"trian.epochs=3: .* train.epochs\?"),
        ("++lr=0.1", r"lr=0.1: .* optimizer.lr\?"),
    ],
)
def test_added_setting_that_nothing_reads_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        composed([override])


def test_preset_setting_added_but_read_by_no_phase_is_refused():
    with pytest.raises(ConfigError, match=r"method.decya=3: no phase reads it; did you mean method.decay\?"):
        composed(["method=pipemare_w", "+method.decya=3"])
    stored = composed(["method=pipemare_w", "method.decay=0.3"]).stored  # written out, the phases refer to nothing
    assert settings_of(OmegaConf.create(dict(stored)), {}).phases[1].method.options["decay"] == 0.3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+optimizer.momentun=0.3"], "optimizer.momentun=0.3: torch.optim.SGD has no such parameter; did you mean "),
        (
            ["+schedule.dept=3"],
            "schedule.dept=3: pipetrain.engine.schedules.one_f_one_b.OneFOneB has no such parameter",
        ),
        (
            ["phases=[{method: {name: stale, scale: 2}}]"],
            "phases[0]: method.scale=2: pipetrain.engine.methods.stale.Stale has",
        ),
    ],
)
def test_options_no_target_takes_are_refused_with_section(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        composed(overrides).check_targets()


def test_unread_setting_of_hydra_section_is_refused():
    check_hydra(OmegaConf.create({"run": {"dir": "here"}, "env": {}}))
    with pytest.raises(ConfigError, match=r"hydra\.run\.dri: no such setting"):
        check_hydra(OmegaConf.create({"run": {"dri": "here"}}))


def test_unknown_setting_of_a_stored_configuration_is_refused():
    settings = composed([])
    with pytest.raises(ConfigError, match="pace=3: no such setting"):
        settings_of(OmegaConf.create({**settings.stored, "pace": 3}), settings.choices)


def test_model_options_from_data_are_accepted_only_if_given():
    assert composed(["model=lenet5"]).model.target.options == {}
    settings = composed(["model=lenet5", "model.classes=5", "model.size=[28,32]"])
    assert settings.model.target.options == {"classes": 5, "size": [28, 32]}
    assert (settings.stored["model"]["classes"], settings.stored["model"]["channels"]) == (5, None)


def optimizer(path, **options):
    return OptimizerSettings.of({"_target_": path, "clip_norm": None, "lr": None, **options})


def test_adafactor_takes_two_numbers_for_eps():
    assert optimizer("torch.optim.Adafactor", eps=[None, 1e-3]).target.options["eps"] == [None, 1e-3]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"max_dims": 1}, "optimizer.groups={'max_dims': 1}: a list such as"),
        (["bias"], "optimizer.groups[0]=bias: a mapping with the condition match or max_dims"),
        (
            [{"max_dims": 1}, {"weight_decay": 0}],
            "optimizer.groups[1]={'weight_decay': 0}: a mapping with the condition",
        ),
        ([{"match": None, "weight_decay": 0}], "optimizer.groups[0]={"),
        ([{"match": []}], "optimizer.groups[0].match=[]: a pattern of parameter names"),
        ([{"match": [3]}], "optimizer.groups[0].match=[3]: a pattern of parameter names"),
        ([{"max_dims": -1}], "optimizer.groups[0].max_dims=-1: a whole number of at least 0"),
        ([{"max_dims": 1.0}], "optimizer.groups[0].max_dims=1.0: a whole number"),
        ([{"max_dims": 1, "lr_scale": -1}], "optimizer.groups[0].lr_scale=-1: a number of at least 0"),
        ([{"max_dims": 1, "lr_scale": None}], "optimizer.groups[0].lr_scale=null: a number of at least 0"),
        ([{"max_dims": 1, "weight_decay": "no"}], "optimizer.groups[0].weight_decay=no: a number of at least 0"),
        ([{"max_dims": 1, "nesterov": 1}], "optimizer.groups[0].nesterov=1: true or false"),
    ],
)
def test_parameter_groups_of_wrong_form_are_refused(groups, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        optimizer("torch.optim.SGD", groups=groups)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("lr", "abc"),
        ("momentum", 1.5),
        ("momentum", -0.1),
        ("dampening", 2),
        ("weight_decay", -1),
        ("eps", -1e-8),
        ("betas", [0.9]),
        ("betas", [0.9, 1.0]),
        ("betas", 0.9),
        ("nesterov", 3),
    ],
)
def test_option_with_which_nothing_is_learned_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"^optimizer\.{name}="):
        optimizer("torch.optim.SGD", **{name: value})


def test_options_of_an_optimizer_of_the_users_own_are_its_own():
    optimizer("mylib.Lamb", momentum=3, betas=0.9, lr=0.1)
    with pytest.raises(ConfigError, match=r"optimizer.lr=-1"):
        optimizer("mylib.Lamb", lr=-1)
