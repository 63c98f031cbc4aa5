"""The layer chain: what stages, precision, methods and checkpoints ask of it."""

import importlib.util
import os
import shutil

import torch
from torch import nn

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.pipeline_rules import PipelineRules
from pipetrain.models.ties import ties_between
from pipetrain.planner.partition.finegrained import check_tied_units
from pipetrain.program.planned_operations import rebinds_weights
from pipetrain.run.builders.model import build_arithmetic, first_inputs
from pipetrain.run.checkpoint import tensor_file
from pipetrain.run.checks.layers import (
    check_batch_norm,
    check_cut_trains_alike,
    check_dtypes,
    check_recomputation,
    check_stateful_data,
    weight_derived_layers,
)
from pipetrain.run.components import Components
from pipetrain.schedules import ListSchedule


def _check_cut(settings: Settings, components: Components) -> list[str]:
    chain = components.chain
    if chain.recorded:
        check_cut_trains_alike(chain, first_inputs(components.data.dataset), settings.model.output, settings.seed)
    return chain.notes


def _check_ties(settings: Settings, components: Components) -> list[str]:
    chain, rules = components.chain, [phase.rules for phase in components.phases]
    if not settings.model.untie:
        if components.finegrained and not all(each.schedule.synchronous for each in rules):
            check_tied_units(chain, components.bounds)
        ties = [] if components.finegrained else ties_between(chain, components.bounds)
        return [f"{tie}, which sum its gradients before each update" for tie in ties]
    own = [f"{name} is a weight of its own beside {was}" for name, was in chain.untied.items()]
    return [f"model.untie=true: {', '.join(own) or 'no layers share a weight, so nothing changes'}"]


def _check_arithmetic(settings: Settings, components: Components) -> list[str]:
    train, unlisted = settings.train, [phase.rules for phase in components.phases if _unlisted(phase.rules)]
    if train.precision == "fp16" and (components.finegrained or unlisted):
        where = "partition=finegrained" if components.finegrained else f"schedule={unlisted[0].schedule.name}"
        raise ConfigError(f"train.precision=fp16: {where} leaves no room to scale the loss; train.precision=bf16 works")
    if train.compile:
        check_compiler(components.device)
    changing = _changing_method(settings, components)
    if train.compile and changing is not None and train.precision != "fp32":
        raise ConfigError(
            f"train.compile=true: with train.precision={train.precision} compiled layers keep casts of the weights "
            f"that their forward read, and method={changing} has the backward read others; take train.precision=fp32, "
            "or leave train.compile out"
        )
    if train.precision != "fp32" and components.chain.recorded:
        inputs, arithmetic = first_inputs(components.data.dataset), build_arithmetic(train)
        check_dtypes(components.chain, inputs, settings.model.output, arithmetic)
    if train.precision != "fp16":
        return []
    synchronous = all(phase.rules.schedule.synchronous for phase in components.phases)
    alone = "each stage by itself, since asynchronous stages cannot wait for each other's gradients"
    skipped = "an update whose gradients are not finite is skipped by"
    return [f"train.precision=fp16: the loss is scaled; {skipped} {'all stages alike' if synchronous else alone}"]


def _unlisted(rules: PipelineRules) -> bool:
    return not isinstance(rules.schedule, ListSchedule)


def _check_carried(_settings: Settings, components: Components) -> list[str]:
    check_stateful_data(components.chain, {"train": components.data.train, "eval": components.data.evaluation})
    return []


def _check_savable(_settings: Settings, components: Components) -> list[str]:
    for name, value in components.chain.module.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not tensor_file.takes(value.dtype):
            kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"model: {name} is a {kind}, which checkpoints cannot hold; dense numbers work")
    return []


def _check_derived_weights(settings: Settings, components: Components) -> list[str]:
    changing = _changing_method(settings, components)
    if changing is None:
        return []
    layers = weight_derived_layers(components.chain, components.data.example, build_arithmetic(settings.train))
    if not layers:
        return []
    named = ", ".join(layers)
    saving = f"layer {named} saves a tensor derived from its weights; the backward pass will use it"
    if len(layers) > 1:
        saving = f"layers {named} save tensors derived from their weights; the backward pass will use them"
    return [f"warning: {saving} unchanged although method={changing} asks for another weight version"]


def _check_batch_norm(settings: Settings, components: Components) -> list[str]:
    normalizes = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in components.chain.module.modules())
    smallest = min(map(len, components.data.train.minibatches(0))) // settings.train.microbatches
    if normalizes and smallest == 1:
        check_batch_norm(components.chain, components.data.example)
    return []


def _check_recomputation(_settings: Settings, components: Components) -> list[str]:
    if components.segments is not None:
        check_recomputation(components.chain, components.data.example)
    return []


def _changing_method(settings: Settings, components: Components) -> str | None:
    """The first method whose backward may find other weights than its forward read."""
    phases = zip(components.phases, settings.phases, strict=True)
    return next((chosen.choices["method"] for phase, chosen in phases if _backward_reads_others(phase.rules)), None)


def _backward_reads_others(rules: PipelineRules) -> bool:
    """True if some backward uses other weights than its forward."""
    if rules.schedule.synchronous:
        return False
    minibatches = rules.steady + 2
    some = sorted({0, rules.num_stages // 2, rules.num_stages - 1})
    return any(rebinds_weights(rules.planned(rules.replicas.workers_of(r)[0], minibatches)) for r in some)


CHECKS = (
    _check_cut,
    _check_ties,
    _check_arithmetic,
    _check_carried,
    _check_savable,
    _check_derived_weights,
    _check_batch_norm,
    _check_recomputation,
)


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
