"""Checks of the modules of a chain: stages can train them, and weight versions take their place."""

from typing import Any

import torch
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.tensors import Tensors, storage_pointers
from pipetrain.graph.layer_trials import copy_of
from pipetrain.graph.recorder import plain_tensors


def check_gradients(chain: LayerChain) -> None:
    """Checks that gradients are dense, nothing else waits for them, and modules leave other processes alone.

    Raises:
        ConfigError: a module makes sparse ones or averages over processes, or a weight has a hook.
    """
    for name, part in chain.module.named_modules():
        if isinstance(part, nn.SyncBatchNorm):
            raise ConfigError(
                f"model: {name} is an nn.SyncBatchNorm, which averages over all processes, stages included; "
                "nn.BatchNorm2d works"
            )
        if getattr(part, "sparse", False) is True and isinstance(part, nn.Embedding | nn.EmbeddingBag):
            raise ConfigError(f"model: {name} has sparse=True; stages exchange and sum dense gradients: sparse=False")
    for name, weight in chain.module.named_parameters():
        if weight._backward_hooks or weight._post_accumulate_grad_hooks:
            raise ConfigError(
                f"model: {name} has a gradient hook, which a stage would not call; let the forward use a masked "
                "weight, or a method or an optimizer of your own change the gradient"
            )


def check_memory(chain: LayerChain) -> None:
    """Checks that the memory of weights is that of parameters alone, which take other memory for other versions.

    Raises:
        ConfigError: a buffer or a plain attribute shares it.
    """
    memory = storage_pointers(chain.module.parameters()) - {0}  # which tensors without entries have
    for name, tensor in {**plain_tensors(chain.module), **dict(chain.module.named_buffers())}.items():
        if storage_pointers([tensor]) & memory:
            raise ConfigError(
                f"model: {name.lstrip('.')} shares the memory of a weight, and would not follow the weight versions of "
                "an asynchronous pipeline; take it from the weight in the forward"
            )


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
