"""The whole model of a checkpoint, in one process and in evaluation mode."""

from pathlib import Path
from typing import Any

import torch

from pipetrain.config.settings import Settings
from pipetrain.models.chain import LayerChain
from pipetrain.run.builders.machine import device_of
from pipetrain.run.builders.model import build_arithmetic, build_model
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.compatibility import check_vocabulary


def whole_model(settings: Settings, dataset: Any, folder: Path) -> LayerChain:
    """The model with the weights of the checkpoint in `folder`, on the device of the settings.

    Raises:
        ConfigError: the weights are of another model, or the data set has another vocabulary.
    """
    check_vocabulary(folder, dataset)
    chain = build_model(settings, dataset)
    chain.module.load_state_dict(store.whole_state(folder, chain))
    chain.module.to(torch.device(device_of(settings.device))).eval()
    build_arithmetic(settings.train).prepare(chain.module)
    for layer in chain.layers:
        layer.eval()
    return chain
