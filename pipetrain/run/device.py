"""Which device a run, and each of its processes, computes on."""

import torch

from pipetrain.errors import ConfigError


def device_of(device: str) -> str:
    """cpu or cuda for the setting `device`.

    Raises:
        ConfigError: there is no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda: torch finds no CUDA device here; device=cpu works, `pipetrain doctor` says more"
        )
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def device_at(kind: str, local_rank: int) -> torch.device:
    """Where the process of this rank on its machine computes; processes share the devices in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, local_rank % torch.get_device_module(kind).device_count())
