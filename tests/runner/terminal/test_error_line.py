"""Errors as a user sees them."""

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain.engine.errors import ConfigError, ExitCode, RunError
from pipetrain.runner.config.schema import schema
from pipetrain.runner.terminal.error_line import report_error


def shown(capsys, error, **options):
    assert report_error(error, ExitCode.WRONG_USAGE, **options) is ExitCode.WRONG_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_error_is_one_line_whatever_its_message(capsys):
    assert shown(capsys, ConfigError("two\n  lines")) == "pipetrain: error: two lines\n"
    assert shown(capsys, KeyError()) == "pipetrain: error: KeyError\n"


def test_error_that_is_no_wrong_setting_names_its_type_and_more(capsys):
    assert shown(capsys, KeyError("label"), more="; log: x") == "pipetrain: error: KeyError: 'label'; log: x\n"
    assert shown(capsys, RunError("stage 1 failed")) == "pipetrain: error: stage 1 failed\n"


def test_setting_that_is_missing_is_named_with_what_gives_it(capsys):
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.to_container(OmegaConf.create({"model": {"_target_": "???"}}), throw_on_missing=True)
    line = "pipetrain: error: model._target_ is not set; name your function or class: model._target_=mylib.Thing\n"
    assert shown(capsys, caught.value) == line


def test_wrong_type_is_shown_without_configuration_internals(capsys):
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.merge(schema(), {"train": {"epochs": "many"}})
    line = shown(capsys, caught.value)
    assert "many" in line
    assert "full_key" not in line
    assert line.count("\n") == 1


def test_search_path_of_a_composition_is_left_out(capsys):
    error = ConfigCompositionException("Could not find 'model/nope'\n\nConfig search path:\n\tprovider=main")
    error.__cause__ = ValueError("line 3: no such file\nand more")
    assert shown(capsys, error) == "pipetrain: error: Could not find 'model/nope': line 3: no such file\n"


def test_debug_shows_the_traceback_above_the_line(capsys):
    try:
        raise ConfigError("no")
    except ConfigError as error:
        lines = shown(capsys, error, debug=True).splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "pipetrain: error: no"
