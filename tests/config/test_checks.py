"""What is refused of settings before model and data are built."""

import re

import pytest
from omegaconf import OmegaConf
from support.methods import MethodCase
from support.worker_pool import CONFIG

from pipetrain.config.checks import check_flag, check_number
from pipetrain.config.settings import settings_of
from pipetrain.errors import ConfigError


def checked(*overrides):
    """The settings of a tiny run with `overrides` such as `threads=1`."""
    base = OmegaConf.create({**CONFIG, **MethodCase.named("gpipe").sections()})
    return settings_of(OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides))), {})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs=0", "train.epochs=0: at least 1"),
        ("train.max_steps=0", "train.max_steps=0: at least 1"),
        ("eval.batch_size=0", "eval.batch_size=0: at least 1"),
        ("checkpoint.every_epochs=-1", "checkpoint.every_epochs=-1: at least 0"),
        ("checkpoint.every_steps=0", "checkpoint.every_steps=0: at least 1"),
        ("checkpoint.keep_last=0", "checkpoint.keep_last=0: at least 1"),
        ("checkpoint.keep_best=0", "checkpoint.keep_best=0: at least 1"),
        ("threads=0", "threads=0: at least 1, or null for the cores divided by the stages"),
        ("train.target={}", "train.target={}: metrics and the values to reach, such as {top1: 66}"),
        ("train.target={top1: high}", "train.target={'top1': 'high'}: metrics and the values to reach"),
    ],
)
def test_value_out_of_range_is_refused_with_what_works(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked(override)


@pytest.mark.parametrize(
    ("batch", "microbatches", "nearest"), [(10, 3, "2, 1, 5"), (64, 5, "4, 2, 8"), (7, 2, "1, 7"), (6, 9, "6, 3, 2")]
)
def test_microbatches_that_do_not_divide_the_minibatch_are_refused_with_the_nearest_that_do(
    batch, microbatches, nearest
):
    with pytest.raises(ConfigError, match=f"microbatches that divide it: {nearest}$"):
        checked(f"train.batch_size={batch}", f"train.microbatches={microbatches}")


def test_settings_at_their_least_are_taken():
    words = ["train.epochs=1", "eval.every_epochs=0", "checkpoint.every_epochs=0", "threads=1", "train.max_steps=1"]
    assert checked(*words, "train.target={loss: 2, top1: 60.5}").train.target == {"loss": 2, "top1": 60.5}


def test_best_checkpoint_of_a_run_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"checkpoint.keep_best=2: eval.every_epochs=0 leaves nothing to compare by"):
        checked("checkpoint.keep_best=2", "eval.every_epochs=0")


def test_flags_and_numbers_are_told_from_each_other():
    for value in (None, 0, 0.5):
        check_number("optimizer.lr", value)
    for value in (True, "0.1"):
        with pytest.raises(ConfigError, match=f"optimizer.lr={value}: a number, or null"):
            check_number("optimizer.lr", value)
    check_flag("dataset.shuffle", value=False)
    with pytest.raises(ConfigError, match=r"dataset.shuffle=0: true or false"):
        check_flag("dataset.shuffle", 0)
