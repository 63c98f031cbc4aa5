"""Exceptions told in one line."""

import errno
import json
import os
import pickle
import re

import pytest

from pipetrain.engine.errors import ConfigError, DataError, InvariantError, one_line
from pipetrain.engine.failure import Failure, RemoteError, described, is_disk_full


def caught(function):
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def line_of(function):
    return function.__code__.co_firstlineno + 1


def missing_key():
    return {}["label"]


def in_a_library():
    json.loads("{")


def quits():
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (missing_key, "KeyError: 'label'"),
        (in_a_library, "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (quits, "sys.exit(3) was called"),
    ],
)
def test_error_is_told_with_its_type_and_the_users_own_line(function, message):
    place = rf"\({re.escape(os.path.relpath(__file__))}:{line_of(function)}\)"
    assert re.fullmatch(rf"{re.escape(message)} {place}", described(caught(function)))


def test_error_without_code_of_the_users_names_no_place():
    assert described(ValueError("two\n  lines")) == "ValueError: two lines"
    assert described(AssertionError()) == "AssertionError"


def test_error_whose_message_cannot_be_made_is_told_all_the_same():
    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError("no message")

    assert described(UnprintableError()) == "UnprintableError: (its message cannot be shown)"
    assert one_line(UnprintableError()) == "(its message cannot be shown)"


def test_long_message_is_cut():
    line = described(ValueError("x" * 10**6))
    assert line == f"ValueError: {'x' * 1000}... (1,000,000 characters)"


@pytest.mark.parametrize("kind", [ConfigError, DataError, InvariantError])
def test_own_error_is_shown_without_type_and_place(kind):
    def breaks():
        raise kind("stage 1 held 3 weight versions")

    assert described(caught(breaks)) == "stage 1 held 3 weight versions"


def test_error_of_the_operating_system_names_its_file():
    assert described(OSError(errno.EROFS, "Read-only file system", "/proc/x")) == "/proc/x: Read-only file system"


def test_error_of_another_process_is_told_as_it_was_there():
    there = pickle.loads(pickle.dumps(Failure.of(caught(missing_key))))

    def here():
        raise RemoteError(there)

    def launcher():
        raise RuntimeError("stage 1 failed") from RemoteError(there)

    assert described(caught(here)) == there.line
    for each in (here, launcher):
        told = Failure.of(caught(each)).traceback
        assert told.startswith(there.traceback)
        assert "in missing_key" in told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_told_from_other_errors(number):
    error, later = OSError(number, os.strerror(number), "run/metrics.jsonl"), RuntimeError("write failed")
    later.__cause__ = error
    for each in (error, later, RemoteError(Failure.of(later))):
        assert is_disk_full(each)
    assert not is_disk_full(OSError(errno.EIO, os.strerror(errno.EIO)))
