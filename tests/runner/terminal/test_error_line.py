"""Errors as a user sees them."""

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain.engine.errors import ConfigError, ExitCode, RunError
from pipetrain.runner.config.schema import schema
from pipetrain.runner.terminal.error_line import report_error


def of_composition():
    error = ConfigCompositionException("Could not find 'model/nope'\n\nConfig search path:\n\tprovider=main")
    error.__cause__ = ValueError("line 3: no such file\nand more")
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("two\n  lines"), "two lines; log: x"),
        (KeyError(), "KeyError; log: x"),
        (KeyError("label"), "KeyError: 'label'; log: x"),
        (RunError("stage 1 failed"), "stage 1 failed; log: x"),
        (of_composition(), "Could not find 'model/nope': line 3: no such file; log: x"),
    ],
)
def test_error_is_one_line_whatever_its_message(capsys, error, line):
    assert report_error(error, ExitCode.WRONG_USAGE, more="; log: x") is ExitCode.WRONG_USAGE
    assert capsys.readouterr() == ("", f"pipetrain: error: {line}\n")


def test_wrong_type_is_shown_without_configuration_internals(capsys):
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.merge(schema(), {"train": {"epochs": "many"}})
    report_error(caught.value, ExitCode.WRONG_USAGE)
    line = capsys.readouterr().err
    assert line.startswith("pipetrain: error: train.epochs: ")
    assert "many" in line
    assert "full_key" not in line
    assert line.count("\n") == 1


def test_debug_shows_the_traceback_above_the_line(capsys):
    try:
        raise ConfigError("no")
    except ConfigError as error:
        report_error(error, ExitCode.WRONG_USAGE, debug=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "pipetrain: error: no"
