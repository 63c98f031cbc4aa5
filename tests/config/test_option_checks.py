"""Options of torch's optimizers."""

import pytest

from pipetrain.config.choices import choices_of
from pipetrain.config.option_checks import check_options
from pipetrain.errors import ConfigError


@pytest.mark.parametrize("choice", list(choices_of("optimizer")), ids=lambda choice: choice.name)
def test_options_of_every_choice_are_in_range(choice):
    check_options(choice.content["_target_"], choice.content)


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
        check_options("torch.optim.SGD", {name: value})


def test_options_of_an_optimizer_of_the_users_own_are_its_own():
    check_options("mylib.Lamb", {"momentum": 3, "betas": 0.9, "lr": 0.1})
    with pytest.raises(ConfigError, match=r"optimizer.lr=-1"):
        check_options("mylib.Lamb", {"lr": -1})
