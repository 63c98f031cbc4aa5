"""Runs the command as a user does, as a subprocess, or in this process, which has imported torch already."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from support.processes import environment

from pipetrain import cli
from pipetrain.engine.errors import ExitCode

TINY = ("model=lenet5", "dataset.limit=160", "train.batch_size=32", "train.epochs=2")
"""Ten steps of a small model."""


WRAPPER = "PIPETRAIN_TEST_WRAPPER"
"""Environment variable with a module that runs the command in another way, such as `support.shared_gpu_cli`."""


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-m", *os.environ.get(WRAPPER, "").split(), "pipetrain", *words]


def pipetrain(*words: str, cwd: Path, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(*words), cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=timeout
    )


def papers(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "papers", *words]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120)


def run(folder: Path, *overrides: str, code: int = 0, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`pipetrain run` into `folder`; its exit code must be `code`."""
    done = pipetrain("run", f"hydra.run.dir={folder}", *overrides, cwd=folder.parent, timeout=timeout)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def pipetrain_here(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The same in this process; workers come from its fork server, which serves all tests."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd), mock.patch.dict(os.environ, env),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):  # fmt: skip
        code = cli.carry_out(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def run_here(folder: Path, *overrides: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`pipetrain run` into `folder` in this process; its exit code must be `code`."""
    done = pipetrain_here("run", f"hydra.run.dir={folder}", *overrides, cwd=folder.parent)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def fails(folder: Path, *overrides: str, message: str) -> None:
    """`pipetrain run` into `folder`, in this process, must fail with one line that matches `message`."""
    done = run_here(folder, *overrides, code=1)
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1


def refused(*words: str, cwd: Path, message: str) -> None:
    """The command, in this process, must end with exit code 2 and print nothing but one line, with `message` in it."""
    done = pipetrain_here(*words, cwd=cwd)
    assert done.stderr.startswith("pipetrain: error: ")
    assert message in done.stderr
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (ExitCode.WRONG_USAGE, 1, "")


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
