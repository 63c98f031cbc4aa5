"""`pipetrain export RUN -o FILE`: a run's weights as a plain state dict, under the names of the user's own module."""

from pathlib import Path

import torch

from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint


def export(run: Path, step: int | None, output: Path) -> None:
    """Writes the file, which torch.load and load_state_dict take without pipetrain.

    Raises:
        ConfigError: there is no such run or checkpoint, or no such folder to write to.
    """
    folder = checkpoint.at_step(run, step)
    if not output.resolve().parent.is_dir():
        raise ConfigError(f"-o {output}: there is no folder {output.resolve().parent}")
    state = checkpoint.model_state(folder)
    torch.save(state, output)
    parameters = sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())
    print(f"{output}: {len(state)} tensors, {parameters:,} values, from {folder}")
