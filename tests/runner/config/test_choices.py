"""What there is to choose from."""

import pytest
from hydra.utils import get_object

from pipetrain.runner.config.choices import (
    choice_of,
    choices_of,
    group_overrides_of,
    names_of_family,
    section,
    with_own_names,
)


@pytest.mark.parametrize("group", ["model", "dataset", "method", "schedule", "experiment"])
def test_every_choice_says_in_one_line_what_it_is(group):
    choices = list(choices_of(group))
    assert choices
    assert "custom" not in [choice.name for choice in choices]
    assert all(choice.summary for choice in choices), [choice.name for choice in choices if not choice.summary]


def test_remarks_are_comments_that_begin_with_their_name():
    remarks = choice_of("model", "resnet101").remarks
    assert set(remarks) == {"paper"}
    assert remarks["paper"].startswith("dataset=tiny_imagenet dataset.size=224 ")
    assert all(choice.remarks["task"] for choice in choices_of("dataset"))


def test_choices_are_sorted_by_the_numbers_in_their_names():
    names = [choice.name for choice in choices_of("model")]
    resnets = [name for name in names if name.removeprefix("resnet").isdigit()]
    assert resnets == sorted(resnets, key=lambda name: int(name.removeprefix("resnet")))
    assert len(resnets) > 3


def test_default_schedule_of_every_method_is_of_its_family():
    for choice in choices_of("method"):
        if target := choice.content.get("_target_"):
            schedule = section("schedule", group_overrides_of("method", choice.name)["schedule"])
            assert get_object(target).family == get_object(schedule["_target_"]).family, choice.name


def test_names_of_a_family_are_those_of_its_classes():
    assert names_of_family("schedule", "double-buffered") == ["1f1b_2bw"]
    assert names_of_family("method", "double-buffered") == ["pipedream_2bw"]
    assert {"gpipe", "1f1b_flush", "sequential"} <= set(names_of_family("schedule", "synchronous"))
    assert names_of_family("schedule", "no such family") == []


@pytest.mark.parametrize(
    ("name", "path", "called"),
    [
        ("pipedream", "pipetrain.engine.methods.pipedream.PipeDream", "pipedream"),
        ("pipedream", "mylib.NesterovLookAhead", "NesterovLookAhead"),
        ("custom", "mylib.NesterovLookAhead", "NesterovLookAhead"),
        ("custom", "???", "custom"),
        ("my_file", "mylib.NesterovLookAhead", "my_file"),
        ("pipemare_w", None, "pipemare_w"),
    ],
)
def test_custom_class_is_named_by_class_and_file_by_file_name(name, path, called):
    config = {"method": {} if path is None else {"_target_": path}, "model": {"_target_": "mylib.Net"}}
    assert with_own_names({"method": name, "model": "custom"}, config) == {"method": called, "model": "custom"}


def test_content_is_read_as_hydra_reads_it_with_aliases_in_a_users_file(tmp_path):
    (tmp_path / "optimizer").mkdir()
    text = "# Mine\nfirst: &rate 1e-3\nsecond: *rate\nday: 2020-01-02\nmissing: ???\nother: ${optimizer.lr}\n"
    (tmp_path / "optimizer" / "mine.yaml").write_text(text)
    expected = {"first": 1e-3, "second": 1e-3, "day": "2020-01-02", "missing": "???", "other": "${optimizer.lr}"}
    assert choice_of("optimizer", "mine", tmp_path).content == expected
    (tmp_path / "optimizer" / "mine.yaml").write_text(text.replace("&rate ", "").replace("*rate", "1e-3"))
    assert choice_of("optimizer", "mine", tmp_path).content == expected
