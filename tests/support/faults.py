"""Faults of every kind at a chosen point of a run: models and a data set as a user would bring them.

The model of `model` replaces the function at a point, such as
`pipetrain.runner.training.checkpoint.tensor_file.write`, by one that does something else first, in the worker of one
rank. The launcher, which builds the model as well, has no rank.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from importlib import import_module

import torch
from torch import Tensor, nn

from pipetrain.zoo.data.images.common import ImageDataset
from pipetrain.zoo.data.images.mnist_cifar import fashion_mnist_mini


def act(how: str) -> None:
    """Does what a worker should not do."""
    if how.startswith("sleep"):
        time.sleep(float(how.removeprefix("sleep") or 1000))
    elif how == "hold":
        ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock
    elif how == "thread":
        threading.Thread(target=time.sleep, args=(1000,)).start()
    elif how.startswith("exit"):
        os._exit(int(how.removeprefix("exit")))
    elif how == "raise":
        raise ValueError("this layer gave up\nand says so in two lines")
    elif how == "memory":
        torch.empty(2**46, dtype=torch.uint8, device="cuda")  # 64 TiB, which no GPU has
    elif how == "sys.exit":
        sys.exit(0)
    elif how == "usr1":
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
    else:
        os.kill(os.getpid(), getattr(signal, how))


def at(point: str, how: str, rank: int, nth: int) -> None:
    """Has the process of `rank` act when it comes to a point, a function's full name, the nth time."""
    if os.environ.get("RANK") != str(rank):
        return
    module, _, name = point.rpartition(".")
    owner = _found(module)
    original = getattr(owner, name)
    calls = 0

    def first(*args: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            act(how)
        return original(*args, **named)

    setattr(owner, name, first)


def _found(path: str) -> object:
    """A module, or a class in one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def model(point: str, how: str, rank: int = 1, nth: int = 1, width: int = 8) -> nn.Module:
    """A small model of six layers that brings the fault along."""
    at(point, how, rank, nth)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


class Failing(nn.Module):
    """Passes its input on; from the nth forward on it acts first, if a worker trains it."""

    def __init__(self, how: str, nth: int) -> None:
        super().__init__()
        self.how, self.left = how, nth

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.training and self.left <= 0 and "RANK" in os.environ:
            act(self.how)
        return x


def failing_layer(how: str, nth: int = 21, width: int = 8) -> nn.Module:
    """A small model of eight layers, of which the fifth acts in training."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), Failing(how, nth),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def data(how: str, rank: int = 1) -> ImageDataset:
    """The bundled data set, which one worker fails to build."""
    if os.environ.get("RANK") == str(rank):
        act(how)
    return fashion_mnist_mini()
