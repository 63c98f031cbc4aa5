"""Targets that the configuration names."""

import sys
from collections.abc import Sequence
from inspect import Parameter
from typing import Any, Literal, Optional

import pytest
from omegaconf.errors import MissingMandatoryValue
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.hydra_errors import explained
from pipetrain.runner.config.instantiate import Target, annotation_problem


def counted(count, *, least=0):
    """What the targets of these tests name."""
    if count < least:
        raise ValueError(f"count={count}\n  is below {least}")
    return count, least


def open_to_all(*, fast: "bool" = False, **options):
    return {"fast": fast, **options}


def refusing():
    raise ConfigError("model.depth=0: at least 1")


def test_target_is_built_with_its_options_and_extra_ones_on_top():
    target = Target.of("model", {"_target_": f"{__name__}.counted", "count": 3})
    assert target.build() == (3, 0)
    assert target.build(least=2) == (3, 2)
    assert target.build(count=5) == (5, 0)
    assert Target.of("model", {"_target_": f"{__name__}.counted"}).build(7) == (7, 0)


def test_missing_option_is_named_with_full_path_and_meaning():
    rule = Target.of("partition", {"_target_": "pipetrain.runner.partition.rules.Explicit", "boundaries": "???"})
    with pytest.raises(MissingMandatoryValue) as caught:
        rule.build()
    wanted = "partition.boundaries is not set; give it the first layer of every later stage, such as [4,7]"
    assert explained(caught.value) == wanted
    assert rule.build(boundaries=[1]).boundaries == [1]


@pytest.mark.parametrize("content", [{"width": 3}, {"_target_": 5}, {"_target_": None}, {"_target_": ["a.b"]}])
def test_section_without_a_target_is_refused_by_name(content):
    assert_refused(r"model\._target_", Target.of, "model", content)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 1, "least": 2}, "ValueError: count=1 is below 2"),
        ({}, "TypeError: .*missing 1 required positional argument: 'count'"),
    ],
)
def test_error_of_a_target_is_one_line(options, message):
    with pytest.raises(ConfigError, match=rf"model\._target_={__name__}\.counted: {message}") as caught:
        Target("model", f"{__name__}.counted", options).build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cuont": 3}, rf"model\.cuont=3: {__name__}\.counted has no such parameter; did you mean model\.count\?"),
        ({"count": 1, "pace": None}, r"model\.pace=null: .* has no such parameter; it takes count, least"),
    ],
)
def test_unknown_target_option_is_refused_with_known_ones(options, message):
    assert_refused(message, lambda: Target("model", f"{__name__}.counted", options).check())


def test_wrongly_typed_value_is_refused_despite_open_keywords():
    with pytest.raises(ConfigError, match=r"^model\.fast=maybe: must be true or false$"):
        Target("model", f"{__name__}.open_to_all", {"pace": 3, "fast": "maybe"}).check()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.such.thing", "no module named no; is its folder on PYTHONPATH?"),
        (
            "pipetrain.engine.losses.CrosEntropy",
            "pipetrain.engine.losses has no CrosEntropy; did you mean CrossEntropy?",
        ),
        ("broken_of_tests.build", "ModuleNotFoundError: No module named 'not_installed' (broken_of_tests.py:2)"),
        ("torch.optim.SGD.pace", "AttributeError: type object 'SGD' has no attribute 'pace'"),
        (".thing", "ValueError: Empty module name"),
    ],
)
def test_unimportable_target_is_refused_with_reason(path, message, tmp_path, monkeypatch):
    (tmp_path / "broken_of_tests.py").write_text("\nimport not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Target("model", path, {}).build()
    assert str(caught.value) == f"model._target_={path}: {message}"


def test_metric_without_torchmetrics_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(
        ConfigError, match=r'F1Score: torchmetrics is not installed; `pip install "pipetrain\[metrics\]"`$'
    ):
        Target("metrics.f1", "torchmetrics.F1Score", {}).check()


EMPTY = Parameter.empty


def told(annotation, value, default=EMPTY):
    """The problem with a value for a parameter."""
    return annotation_problem(Parameter("name", Parameter.KEYWORD_ONLY, annotation=annotation, default=default), value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bool, True),
        (int, 3),
        (int, None),
        (int, {"_target_": "mylib.width"}),
        (float, 3),
        (float, 0.5),
        (Literal["words", "bpe"], "bpe"),
        (int | None, None),
        (int | bool, True),
        (Optional[float], 2),  # noqa: UP045  (as libraries write it)
        (int | Sequence[int], "32"),
        (str, 3),
        (Any, "maybe"),
        ("bool", "maybe"),
        (EMPTY, "maybe"),
    ],
)
def test_values_that_fit_or_of_which_nobody_can_tell_pass(annotation, value):
    assert told(annotation, value) is None


def test_annotation_contradicting_its_default_is_ignored():
    assert told(int, "same", default="valid") is None
    assert told(bool, 1, default=0) is None


@pytest.mark.parametrize(
    ("annotation", "value", "works"),
    [
        (bool, "maybe", "true or false"),
        (bool, 0, "true or false"),
        (int, 3.0, "a whole number"),
        (int, True, "a whole number"),
        (int, [3], "a whole number"),
        (float, "fast", "a number"),
        (int | None, "many", "a whole number"),
        (bool | float, "many", "true or false or a number"),
        (Literal["words", "characters"], "word", "one of words, characters"),
    ],
)
def test_unfit_value_is_refused_with_what_works(annotation, value, works):
    assert told(annotation, value) == f"must be {works}"


def test_default_that_fits_leaves_the_annotation_standing():
    assert told(bool, "maybe", default=False) == "must be true or false"
    assert told(int, 2.5, default=None) == "must be a whole number"
