"""Callbacks of a user's own."""

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import torch

from pipetrain import Callback


class Calls(Callback):
    """Appends a line for each call to a file: its method, and what identifies what it was given."""

    def __init__(self, file: str):
        self.file = Path(file)

    def note(self, method, *given):
        with self.file.open("a") as file:
            file.write(json.dumps([method, *given]) + "\n")

    def on_start(self, run):
        self.note("on_start", str(run.directory), run.settings["seed"], run.step)

    def on_record(self, record):
        self.note("on_record", record["kind"], record["step"])

    def on_step(self, record):
        self.note("on_step", record["step"])

    def on_epoch(self, record):
        self.note("on_epoch", record["step"])

    def on_evaluation(self, record):
        self.note("on_evaluation", record["step"])

    def on_checkpoint(self, step, folder):
        self.note("on_checkpoint", step, folder.is_dir())

    def on_end(self, summary):
        self.note("on_end", summary["status"], summary["steps"])


class Meddling(Callback):
    """Draws from every global generator, changes grad mode, and destroys what it is given."""

    def on_start(self, run):
        self.draw()
        run.settings.clear()

    def on_record(self, record):
        self.draw()
        record.clear()

    def on_checkpoint(self, *_given):
        self.draw()

    def draw(self):
        torch.rand(7)
        torch.manual_seed(1)
        np.random.rand(7)
        random.seed(random.random())
        torch.set_grad_enabled(False)


class Failing(Callback):
    """Raises an exception in one method."""

    def __init__(self, method: str = "on_step", at: int = 3):
        self.method, self.at = method, at
        if method == "on_end":
            self.on_end = self.fail

    def fail(self, _given):
        raise ValueError("no good")

    def on_start(self, run):
        if self.method == "on_start":
            self.fail(run)

    def on_step(self, record):
        if self.method == "on_step" and record["step"] == self.at:
            self.fail(record)


class Killing(Callback):
    """Kills the process at a step, unless there is a file; makes the file."""

    def __init__(self, step: int, file: str):
        self.step, self.file = step, Path(file)

    def on_step(self, record):
        if record["step"] == self.step and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Misspelled(Callback):
    def on_setp(self, record):
        pass


class Needy(Callback):
    def __init__(self, path, option: int = 3):
        pass

    def on_step(self, record):
        pass


def no_class():
    return Calls("calls")
