"""Precision, memory format and compilation of the layers."""

import importlib.util
import os
import shutil
from dataclasses import replace

from pipetrain.data.files.cache import private_folder
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.training.components.stages import StagedModel

_COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def build_arithmetic(train: TrainConfig) -> ComputeOptions:
    """Precision, memory format and compilation of the layers.

    Raises:
        ConfigError: the compiler has no folder of its own.
    """
    if train.compile and _COMPILER_CACHE not in os.environ:  # by default one in /tmp, whose pickles anyone can write
        try:
            os.environ[_COMPILER_CACHE] = str(private_folder("inductor"))
        except OSError as error:
            raise ConfigError(
                f"train.compile=true: {error.filename}: {error.strerror}; {_COMPILER_CACHE}=FOLDER says where compiled "
                "code is kept"
            ) from error
    return ComputeOptions(train.precision, train.channels_last, train.compile)


def arithmetic_of_checks(train: TrainConfig, device: str) -> ComputeOptions:
    """Arithmetic of the checks, which compute on the CPU: fp32 for a run on a GPU, whose precision a CPU may lack."""
    arithmetic = build_arithmetic(train)
    return arithmetic if device == "cpu" else replace(arithmetic, precision="fp32")


def check_arithmetic(train: TrainConfig, device: str, staged: StagedModel, changing: str | None) -> list[str]:
    """A note on who skips an update under a scaled loss.

    `changing` is the first method whose backward may read other weights than its forward.
    """
    unlisted = staged.unlisted
    if train.precision == "fp16" and (staged.plan.finegrained or unlisted):
        where = "partition=finegrained" if unlisted is None else f"schedule={unlisted.name}"
        raise ConfigError(f"train.precision=fp16: {where} leaves no room to scale the loss; train.precision=bf16 works")
    if train.compile:
        _check_compilation(train.precision, device, changing)
    if train.precision != "fp16":
        return []
    alone = "each stage by itself, since asynchronous stages cannot wait for each other's gradients"
    stages = "all stages alike" if staged.synchronous else alone
    skipped = f"an update whose gradients are not finite is skipped by {stages}"
    return [f"train.precision=fp16: the loss is scaled; {skipped}"]


def _check_compilation(precision: str, device: str, changing: str | None) -> None:
    """Checks that a compiler is here for what torch generates, and that no layer keeps casts of other weights."""
    if changing is not None and precision != "fp32":
        raise ConfigError(
            f"train.compile=true: with train.precision={precision} compiled layers keep casts of the weights that the "
            f"forward read, but under method={changing} the backward reads other weights; use train.precision=fp32, "
            "or leave train.compile out"
        )
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError("train.compile=true: torch compiles for CUDA with Triton, which is not installed")
    command = os.environ.get("CXX", "g++")
    if device == "cpu" and shutil.which(command) is None:
        raise ConfigError(
            f"train.compile=true: torch compiles C++ code, and there is no compiler {command}; install one, or set the "
            "environment variable CXX"
        )
