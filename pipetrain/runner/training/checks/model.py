"""Checks of the layer chain: stages, precision, methods and checkpoints can handle it."""

import importlib.util
import os
import shutil
from collections.abc import Iterator

import torch
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import ties_between
from pipetrain.engine.program.planned_operations import rebinds_weights
from pipetrain.engine.schedules import ListSchedule
from pipetrain.engine.tensors import storage_pointers
from pipetrain.graph.recorder import plain_tensors
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.finegrained import check_tied_units
from pipetrain.runner.training.builders.model import build_arithmetic, first_inputs
from pipetrain.runner.training.checkpoint import tensor_file
from pipetrain.runner.training.checks.in_place import check_in_place
from pipetrain.runner.training.checks.layers import check_forwards, check_recomputation, weight_derived_layers
from pipetrain.runner.training.checks.minibatches import check_batch_norm, check_stateful_data
from pipetrain.runner.training.checks.recording import check_cut
from pipetrain.runner.training.components import Components


def check_model(settings: Settings, components: Components) -> Iterator[str]:
    """Notes on the model: ties, precision, tensors derived from weights.

    Raises:
        ConfigError: stages, precision, method or checkpoints cannot handle a layer.
    """
    chain, data = components.chain, components.data
    _check_gradients(chain)
    if chain.recorded:
        arithmetic = build_arithmetic(settings.train)
        yield from check_cut(chain, first_inputs(data.dataset), settings.model.output, settings.seed, arithmetic)
    yield from chain.notes
    cuts = [] if components.plan.finegrained else [first for first, _ in components.plan.bounds[1:]]
    overlap = not components.plan.finegrained and any(_several_in_flight(phase.rules) for phase in components.phases)
    inputs = components.trial.inputs
    notes, in_place = check_forwards(chain, inputs, cuts, components.arithmetic_of_checks, overlap=overlap)
    yield from notes
    if in_place:
        check_in_place(chain, inputs, cuts, in_place)
    yield from _ties(settings, components)
    changing = _changing_method(settings, components)
    yield from _arithmetic(settings, components, changing)
    if not _synchronous(components):
        _check_memory(chain)
    check_stateful_data(chain, {"train": data.train, "eval": data.evaluation})
    for name, value in chain.module.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not tensor_file.takes(value.dtype):
            kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(
                f"model: {name} is a {kind}, which checkpoints cannot hold; dense real numbers and complex64 work"
            )
    if changing is not None:
        yield from _derived_weights(components, changing)
    normalizes = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in chain.module.modules())
    if normalizes and min(map(len, data.train.minibatches(0))) // settings.train.microbatches == 1:
        check_batch_norm(chain, data.example)
    if components.segments is not None:
        check_recomputation(chain, data.example)


def _synchronous(components: Components) -> bool:
    return all(phase.rules.schedule.synchronous for phase in components.phases)


def _several_in_flight(rules: PipelineRules) -> bool:
    """True if a forward of a stage may come between that of a microbatch and its backward."""
    schedule, D, N = rules.schedule, rules.num_stages, rules.num_microbatches
    if not isinstance(schedule, ListSchedule):
        return D > 1 or N > 1
    return any(schedule.in_flight(r, D, N) > 1 for r in range(D))


def _check_gradients(chain: LayerChain) -> None:
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


def _check_memory(chain: LayerChain) -> None:
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


def _ties(settings: Settings, components: Components) -> list[str]:
    chain = components.chain
    if not settings.model.untie:
        if not components.plan.finegrained:
            return [
                f"{tie}, which sum its gradients before each update"
                for tie in ties_between(chain, components.plan.bounds)
            ]
        if not _synchronous(components):
            check_tied_units(chain, components.plan.bounds)
        return []
    own = [f"{name} is a weight of its own beside {was}" for name, was in chain.untied.items()]
    return [f"model.untie=true: {', '.join(own) or 'no layers share a weight, so nothing changes'}"]


def _arithmetic(settings: Settings, components: Components, changing: str | None) -> list[str]:
    """Notes on precision; `changing` is the first method whose backward may read other weights than its forward."""
    train, schedules = settings.train, [phase.rules.schedule for phase in components.phases]
    unlisted = [schedule for schedule in schedules if not isinstance(schedule, ListSchedule)]
    if train.precision == "fp16" and (components.plan.finegrained or unlisted):
        where = "partition=finegrained" if components.plan.finegrained else f"schedule={unlisted[0].name}"
        raise ConfigError(f"train.precision=fp16: {where} leaves no room to scale the loss; train.precision=bf16 works")
    if train.compile:
        check_compiler(components.device)
    if train.compile and changing is not None and train.precision != "fp32":
        raise ConfigError(
            f"train.compile=true: with train.precision={train.precision} compiled layers keep casts of the weights "
            f"that their forward read, and method={changing} has the backward read others; take train.precision=fp32, "
            "or leave train.compile out"
        )
    if train.precision != "fp16":
        return []
    alone = "each stage by itself, since asynchronous stages cannot wait for each other's gradients"
    stages = "all stages alike" if _synchronous(components) else alone
    skipped = f"an update whose gradients are not finite is skipped by {stages}"
    return [f"train.precision=fp16: the loss is scaled; {skipped}"]


def _derived_weights(components: Components, changing: str) -> Iterator[str]:
    layers = weight_derived_layers(components.chain, components.data.example, components.arithmetic_of_checks)
    if layers:
        named = ", ".join(layers)
        saving = f"layer {named} saves a tensor derived from its weights; the backward pass will use it"
        if len(layers) > 1:
            saving = f"layers {named} save tensors derived from their weights; the backward pass will use them"
        yield f"warning: {saving} unchanged although method={changing} asks for another weight version"


def _changing_method(settings: Settings, components: Components) -> str | None:
    """The first method whose backward may find other weights than its forward read."""
    phases = zip(components.phases, settings.phases, strict=True)
    return next((chosen.choices["method"] for phase, chosen in phases if _backward_reads_others(phase.rules)), None)


def _backward_reads_others(rules: PipelineRules) -> bool:
    if rules.schedule.synchronous:
        return False
    minibatches = rules.steady + 2
    some = sorted({0, rules.num_stages // 2, rules.num_stages - 1})
    return any(rebinds_weights(rules.planned(rules.replicas.workers_of(r)[0], minibatches)) for r in some)


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
