"""Checks of minibatches: batch norm needs more than one sample, and layers that carry state need consecutive ones."""

from typing import Any

import torch

from pipetrain.engine.data.interface import Split
from pipetrain.engine.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.tensors import Tensors
from pipetrain.runner.training.checks.layers import copy_of


def check_batch_norm(chain: LayerChain, inputs: Tensors) -> None:
    """Trains on a single sample, which batch norm refuses if it has one value per channel.

    Raises:
        ConfigError: a layer cannot.
    """
    probe = copy_of(chain)
    tensors: Any = tuple(tensor[:1].clone() for tensor in inputs)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for label, layer in zip(probe.labels, probe.layers, strict=True):
            try:
                result = layer(*tensors)
            except ValueError as error:
                if not str(error).startswith("Expected more than 1 value per channel"):
                    raise
                raise ConfigError(
                    "train.batch_size, train.microbatches: some microbatch has one sample, and batch norm in layer "
                    f"{label} needs more than one value per channel; microbatches of two samples or more work"
                ) from error
            tensors = result if isinstance(result, tuple) else (result,)


def check_stateful_data(chain: LayerChain, loaders: dict[str, Loader]) -> None:
    """Checks that row b of each minibatch continues row b of the previous one, if layers carry state.

    Raises:
        ConfigError: the layers would continue with the state of other rows.
    """
    labels = [label for label, layer in zip(chain.labels, chain.layers, strict=True) if stateful_layers(layer)]
    if not labels:
        return
    carries = f"model: layer {labels[0]} carries its state from minibatch to minibatch, and the minibatches of `"
    for name, loader in loaders.items():
        if not Split(loader.dataset).ordered:
            raise ConfigError(
                f"{carries}{name}` do not continue one another; running text in rows works: a data set whose splits "
                "are `ordered`, such as dataset=austen dataset.carried=true"
            )
        sizes = set(loader.sizes(0))
        if len(sizes) > 1:
            few, many = min(sizes), max(sizes)
            raise ConfigError(f"{carries}{name}` have {few} to {many} rows; as many in each are needed")
