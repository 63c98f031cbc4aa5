"""What differs between the settings of a run and of the one that it continues."""

import pytest

from pipetrain.runner.config.settings_diff import Difference, differences, identity_settings

OLD = {
    "seed": 0,
    "model": {"_target_": "lib.build", "width": 3},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1, "clip_norm": None, "momentum": 0.9},
    "train": {"epochs": 2, "target": {"top1": 66}},
    "phases": [{"steps": 3}, {}],
}


def changed(section=None, **values):
    return {**OLD, **({section: {**OLD[section], **values}} if section else values)}


def told(new, old_names=None, new_names=None):
    return [str(each) for each in differences(OLD, new, (old_names or {}, new_names or {}))]


def test_settings_are_told_with_both_values():
    assert told(OLD) == []
    assert told(changed("train", epochs=3)) == ["train.epochs 2 -> 3"]
    assert told(changed("optimizer", clip_norm=1.0)) == ["optimizer.clip_norm null -> 1.0"]
    assert told(changed("train", target=None)) == ["train.target.top1 66 -> null"]
    assert told(changed(phases=[{"steps": 4}, {}])) == ["other phases"]


def test_setting_that_an_older_run_does_not_know_has_its_default():
    assert told({**OLD, "trace": False, "eval": {"every_epochs": 1}}) == []
    assert told({**OLD, "trace": True}) == ["trace false -> true"]


def test_resume_and_debug_are_no_differences():
    assert told({**OLD, "resume": "auto", "debug": True}) == []


def test_another_choice_of_a_group_is_one_difference():
    other = {**OLD, "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.1, "betas": [0.9, 0.99]}}
    assert told(other) == ["optimizer torch.optim.SGD -> torch.optim.Adam"]
    assert told(other, {"optimizer": "sgdm"}, {"optimizer": "adam"}) == ["optimizer sgdm -> adam"]
    assert told(other, {"optimizer": "custom"}, {"optimizer": "custom"}) == [
        "optimizer torch.optim.SGD -> torch.optim.Adam"
    ]


@pytest.mark.parametrize(
    ("setting", "kept", "changes_weights"),
    [
        ("seed", True, True),
        ("train.batch_size", True, True),
        ("dataset.limit", True, True),
        ("model", True, True),
        ("model.width", False, True),
        ("model.untie", True, True),
        ("train.precision", False, True),
        ("optimizer.lr", False, True),
        ("method", False, True),
        ("train.epochs", False, False),
        ("train.target.top1", False, False),
        ("train.patience", False, False),
        ("train.min_improvement", False, False),
        ("train.ema", False, True),
        ("log.every_steps", False, False),
        ("checkpoint.every_epochs", False, False),
        ("checkpoint.every_steps", False, True),
        ("executor.name", False, False),
    ],
)
def test_difference_says_if_run_keeps_it_and_weights_follow(setting, kept, changes_weights):
    difference = Difference(setting, 1, 2)
    assert (difference.why_fixed is not None) == kept
    assert difference.changes_weights == changes_weights


def test_runs_differing_without_weight_effect_may_continue():
    assert identity_settings(
        {**OLD, "log": {"every_steps": 5}, "executor": {"name": "simulated"}}
    ) == identity_settings(OLD)
    assert identity_settings(changed("train", epochs=3)) != identity_settings(OLD)
    assert identity_settings({**OLD, "checkpoint": {"every_steps": 5}}) != identity_settings(OLD)
    assert identity_settings({**OLD, "partition": {"stages": 3}}) != identity_settings(OLD)
