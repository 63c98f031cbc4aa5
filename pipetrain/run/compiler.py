"""Whether torch.compile can work here."""

import importlib.util
import os
import shutil

from pipetrain.errors import ConfigError


def check_compiler(device: str) -> None:
    """Checks that what torch generates can be compiled for `device`, cpu or cuda.

    Raises:
        ConfigError: a compiler is missing.
    """
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError("train.compile=true: torch generates Triton code for CUDA, and there is no module triton")
    command = os.environ.get("CXX", "g++")
    if device == "cpu" and shutil.which(command) is None:
        raise ConfigError(
            f"train.compile=true: torch generates C++, and there is no compiler {command}; install one, or name it in "
            "the environment variable CXX"
        )
