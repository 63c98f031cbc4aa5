"""What is refused of settings before model and data are built."""

import re

import pytest
from omegaconf import OmegaConf
from support.methods import MethodCase
from support.worker_pool import CONFIG

from pipetrain.engine.errors import ConfigError, check_flag
from pipetrain.runner.config.checks import task_of
from pipetrain.runner.config.choices import names_of
from pipetrain.runner.config.composition import composed, settings_of


def checked(*overrides):
    """The settings of a tiny run with `overrides` such as `threads=1`."""
    base = OmegaConf.create({**CONFIG, **MethodCase.named("gpipe").sections()})
    return settings_of(OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides))), {})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs=0", "train.epochs=0: at least 1"),
        ("train.max_steps=0", "train.max_steps=0: at least 1"),
        ("train.ema=1", "train.ema=1.0: a number above 0 and below 1 is needed, such as 0.99, or null for none"),
        ("train.ema=0", "train.ema=0.0: a number above 0 and below 1 is needed"),
        ("train.patience=0", "train.patience=0: at least 1"),
        ("train.min_improvement=-1", "train.min_improvement=-1.0: a number of at least 0 is needed, 0 for any"),
        ("train.min_improvement=0.5", "train.min_improvement=0.5: goes with train.patience, such as train.patience=3"),
        ("eval.batch_size=0", "eval.batch_size=0: at least 1"),
        ("eval.beam_width=0", "eval.beam_width=0: at least 1"),
        ("eval.decode_every_epochs=0", "eval.decode_every_epochs=0: at least 1"),
        ("eval.length_penalty=-1", "eval.length_penalty=-1.0: a number of at least 0 is needed, 0 for none"),
        ("eval.length_penalty_form=wu", "eval.length_penalty_form=wu: one of fairseq, gnmt"),
        ("planner.cost_model=ring", "planner.cost_model=ring: one of ring_allreduce, pipedream_paper"),
        ("planner.repeats=0", "planner.repeats=0"),
        ("planner.objective=cost", "planner.objective=cost: one of time, memory"),
        ("topology.devices=0", "topology.devices=0: at least 1"),
        ("checkpoint.every_epochs=-1", "checkpoint.every_epochs=-1: at least 0"),
        ("checkpoint.every_steps=0", "checkpoint.every_steps=0: at least 1"),
        ("checkpoint.keep_last=0", "checkpoint.keep_last=0: at least 1"),
        (
            "checkpoint.every_minutes=0",
            "checkpoint.every_minutes=0.0: a number above 0 is needed, or null for none",
        ),
        ("checkpoint.keep_best=0", "checkpoint.keep_best=0: at least 1"),
        ("threads=0", "threads=0: at least 1, or null for the cores divided by the stages"),
        ("train.target={}", "train.target={}: metrics and the values to reach, such as {top1: 66}"),
        ("seed=-1", "seed=-1: at least 0 and below 2 ** 63"),
        ("seed=9223372036854775808", "seed=9223372036854775808: at least 0 and below 2 ** 63"),
        ("partition.stages=0", "partition.stages=0: a whole number of at least 1 is needed"),
        ("dataset.limit=0", "dataset.limit=0: a whole number of at least 1 is needed, or null for all samples"),
        ("dataset.workers=-1", "dataset.workers=-1: a whole number of at least 0 is needed"),
        ("dataset.prefetch=0", "dataset.prefetch=0: a whole number of at least 1 is needed, or null for 2"),
        ("dataset.prefetch=3", "dataset.prefetch=3: workers read ahead, and dataset.workers=0; raise it"),
        ("dataset.pin_memory=2", "dataset.pin_memory=2: true or false"),
        ("launch.hang_timeout=nan", "launch.hang_timeout=nan: a number above 0 is needed, in seconds"),
        ("launch.start_timeout=0", "launch.start_timeout=0.0: a number above 0 is needed, in seconds"),
        ("log.progress_seconds=nan", "log.progress_seconds=nan: a number of at least 0 is needed, 0 for only a line"),
        ("optimizer.clip_norm=0", "optimizer.clip_norm=0: a number above 0 is needed, or null for no clipping"),
        ("optimizer.momentum=1.5", "optimizer.momentum=1.5: a number of at least 0 and below 1 is needed"),
        ("train.target={top1: .nan}", "train.target={'top1': nan}: metrics and the values to reach"),
        ("train.target={top1: high}", "train.target={'top1': 'high'}: metrics and the values to reach"),
    ],
)
def test_value_out_of_range_is_refused_with_what_works(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked(override)


@pytest.mark.parametrize(
    ("batch", "microbatches", "nearest"), [(10, 3, "1, 2, 5"), (64, 5, "2, 4, 8"), (7, 2, "1, 7"), (6, 9, "2, 3, 6")]
)
def test_nondividing_microbatches_are_refused_with_nearest(batch, microbatches, nearest):
    with pytest.raises(ConfigError, match=f"the nearest that divide it are {nearest}$"):
        checked(f"train.batch_size={batch}", f"train.microbatches={microbatches}")


def test_settings_at_their_least_are_taken():
    words = ["train.epochs=1", "eval.every_epochs=1", "checkpoint.every_epochs=0", "threads=1", "train.max_steps=1"]
    assert checked("eval.every_epochs=0").eval.every_epochs == 0
    assert checked(*words, "train.target={loss: 2, top1: 60.5}").train.target == {"loss": 2, "top1": 60.5}


def test_best_checkpoint_of_a_run_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"checkpoint.keep_best=2: eval.every_epochs=0 leaves nothing to compare by"):
        checked("checkpoint.keep_best=2", "eval.every_epochs=0")


def test_patience_of_a_run_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"train.patience=2: eval.every_epochs=0 evaluates nothing; set it to 1 or m"):
        checked("train.patience=2", "eval.every_epochs=0")


def test_choice_that_every_run_needs_cannot_be_removed():
    with pytest.raises(ConfigError, match=r"~lr_schedule: every run needs a choice of lr_schedule: lr_schedule=NAME"):
        composed(["~lr_schedule"])
    assert composed(["~optimizer.momentum"]).choices["optimizer"] == "sgdm"


def test_flag_is_true_or_false_and_nothing_else():
    check_flag("dataset.shuffle", value=False)
    with pytest.raises(ConfigError, match=r"dataset.shuffle=0: true or false"):
        check_flag("dataset.shuffle", 0)


def test_divisors_of_a_large_minibatch_are_found_at_once():
    with pytest.raises(ConfigError, match=r"the nearest that divide it are 1, 2, 4$"):
        checked("train.batch_size=4000000000000", "train.microbatches=3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model=resnet20", "dataset=austen"],
            "model=resnet20 dataset=austen: the model is for image classification, and the data set for language "
            "modeling; data sets for image classification are cifar10, ",
        ),
        (["model=gpt", "dataset=multi30k"], "the model is for language modeling, and the data set for translation; "),
        (["model=s2vt", "dataset=cifar10"], "data sets for video captioning are msvd, synthetic_moving_shapes$"),
    ],
)
def test_model_and_data_set_of_different_tasks_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        composed(words)


@pytest.mark.parametrize(
    "words",
    [
        ["model=residual_lstm", "dataset=imdb"],
        ["model=lenet5", "dataset=austen", "dataset._target_=mine.images"],
        ["model=lenet5", "model._target_=mine.model", "dataset=austen"],
        ["model=custom", "model._target_=mine.model", "dataset=austen"],
        ["model=lenet5", "dataset=custom", "dataset._target_=mine.images"],
    ],
)
def test_model_and_data_set_of_one_task_or_of_a_users_own_pass(words):
    assert composed(words).train.epochs


def test_every_model_has_the_task_of_a_data_set():
    assert {task_of("model", name) for name in names_of("model")} == {
        task_of("dataset", name) for name in names_of("dataset")
    }
