"""Checks of the layer chain: stages, methods and checkpoints can handle it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipetrain.data.interface import Split
from pipetrain.data.loader import Loader
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.models.ties import ties_between
from pipetrain.engine.tensors import Tensors, storage_pointers
from pipetrain.graph.conversion import Inputs
from pipetrain.graph.example import Example
from pipetrain.graph.recorder import plain_tensors
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.finegrained import check_tied_units
from pipetrain.runner.partition.run_plan import Plan
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.data import Data
from pipetrain.runner.training.components.layers import copy_of
from pipetrain.runner.training.components.model import derived_notes, first_inputs

_PLAIN = ComputeOptions()
_OTHER_IN_EVALUATION = (
    "warning: in evaluation the layers return something else than the forward of {} itself, as where torch's fast path "
    "of nn.TransformerEncoder clears padded positions (enable_nested_tensor=False turns it off); the metrics are those "
    "of the layers"
)
_TOLERANCE = 0.05
"""Relative, in lower precision: where a cast is left out, the numbers are only more precise."""


def check_model(settings: Settings, chain: LayerChain, data: Data) -> Iterator[str]:
    """Notes of the model on its layers, and on options that follow from the data.

    Raises:
        ConfigError: no stage, checkpoint or minibatch of such a size can handle a module.
    """
    check_gradients(chain)
    if chain.recorded:
        arithmetic = build_arithmetic(settings.train)
        yield from check_cut(chain, first_inputs(data.dataset), settings.model.output, settings.seed, arithmetic)
    yield from chain.notes
    yield from derived_notes(settings.model.target, data.dataset)
    check_stateful_data(chain, {"train": data.train, "eval": data.evaluation})
    normalizes = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in chain.module.modules())
    if normalizes and min(map(len, data.train.minibatches(0))) // settings.train.microbatches == 1:
        check_batch_norm(chain, data.example)


def check_cut(
    chain: LayerChain, inputs: Inputs, output: str | None, seed: int, arithmetic: ComputeOptions = _PLAIN
) -> list[str]:
    """Compares layers that were cut along a graph with the whole module, on the first samples.

    In training their outputs, gradients and buffers have equal bits; in the precision of the run, the same outputs. In
    evaluation, where torch has other kernels for whole modules, there is a note if they differ.

    Args:
        chain: the model, `recorded`; left as it is.
        inputs: of a few samples.
        output: entry of the module's result that goes to the loss; None: see `chain_of`.
        seed: of the run.
        arithmetic: of the run.

    Raises:
        ConfigError: they differ.
    """
    # as with the recording itself, modules of torch that nothing else needs
    from pipetrain.graph.equivalence import TOLERANCE, matches_eager, trains_like_eager

    example, name = Example.of(inputs), type(chain.module).__name__
    if not trains_like_eager(chain, example, output, seed):
        raise ConfigError(
            f"model: {name} cannot be cut into stages: in training, its layers give different outputs or gradients "
            "than its own forward, for example because its first call differs; return an nn.Sequential whose children "
            "are the layers, or a pipetrain.LayerChain(module, layers)"
        )
    tolerance = _TOLERANCE if arithmetic.mixed else TOLERANCE
    with arithmetic.computing(torch.device("cpu")):
        try:
            same = matches_eager(chain, example, output, seed, tolerance)
        except Exception:  # the forward itself cannot evaluate these inputs, which a cut does not change
            return []
    if same:
        return []
    if arithmetic.mixed:
        raise ConfigError(
            f"train.precision={arithmetic.precision}: in stages, {name} gives different outputs than as a whole, "
            "because its forward depends on the dtypes of tensors; train.precision=fp32 works"
        )
    return [_OTHER_IN_EVALUATION.format(name)]


def check_shared_weights(chain: LayerChain, plan: Plan, phases: Sequence[Phase], *, untie: bool) -> list[str]:
    """Notes on weights that layers share; `untie` is the setting.

    Raises:
        ConfigError: stages under an asynchronous schedule would share memory.
    """
    synchronous = all(phase.rules.schedule.synchronous for phase in phases)
    if not synchronous:
        check_memory(chain)
    if untie:
        own = [f"{name} is a weight of its own beside {was}" for name, was in chain.untied.items()]
        return [f"model.untie=true: {', '.join(own) or 'no layers share a weight, so nothing changes'}"]
    if not plan.finegrained:
        return [f"{tie}, which sum its gradients before each update" for tie in ties_between(chain, plan.bounds)]
    if not synchronous:
        check_tied_units(chain, plan.bounds)
    return []


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


def check_stateful_data(chain: LayerChain, loaders: Mapping[str, Loader]) -> None:
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
            raise ConfigError(f"{carries}{name}` have {few} to {many} rows; all must have the same number")
