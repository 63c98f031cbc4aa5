"""The model as a chain of layers, with what it must know of the data: sizes of images, classes, vocabulary."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.data.fetch import Fetch, form_of
from pipetrain.engine.data.interface import Split
from pipetrain.engine.data.order import own_minibatches
from pipetrain.engine.data.ranges import class_count, known_labels, label_of
from pipetrain.engine.data.samples import class_of, sample_of
from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.files.cache import private_folder
from pipetrain.engine.models.chain import LayerChain, sharing_buffers
from pipetrain.engine.models.ties import untie
from pipetrain.engine.seeding import python_draws
from pipetrain.graph.conversion import Inputs, chain_of, is_cut_along_graph
from pipetrain.graph.example import Example
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.config.settings import ModelSettings, Settings

_FIRST = 5
"""Samples that a model is tried with before it is cut along its graph."""


def build_model(settings: Settings, dataset: Any) -> LayerChain:
    """The layer chain of a run's model, whose open options the data set fills in; the seed draws its initial weights.

    Raises:
        ConfigError: the target does not return a model, or refuses an option.
    """
    model = settings.model.target
    options = model_options(settings.model, dataset)
    torch.manual_seed(settings.seed)
    with python_draws(settings.seed):
        module = model.build(**options)
    if not isinstance(module, nn.Module | LayerChain):
        raise model.wrong_type_error(module, "an nn.Module or a pipetrain.LayerChain")
    if torch.get_default_device().type != "meta":  # under which a caller asks for shapes alone
        parts = (module.module, *module.layers) if isinstance(module, LayerChain) else (module,)
        with sharing_buffers(*parts):
            parts[0].cpu()  # where the checks compute, and from where each stage goes to its device
    module.train()  # before its graph is recorded: a library may return it in evaluation mode
    inputs = first_inputs(dataset) if is_cut_along_graph(module) else ()
    example, whole = Example.of(inputs), module.module if isinstance(module, LayerChain) else module
    with naming_types(whole, lambda *tensors: replace(example, tensors=tensors).given_to(whole), example.tensors):
        chain = chain_of(module, inputs, settings.model.output)
    if settings.model.untie:
        untie(chain)
    chain.train()
    return chain


def model_options(model: ModelSettings, dataset: Any) -> dict[str, Any]:
    """What a model's target is called with beside its own options: what the data set fills in, and weights by name."""
    options = from_data(model.target, dataset)
    if model.constructor_takes_weights:
        options["weights"] = model.weights
    return options


def first_inputs(dataset: Any) -> Inputs:
    """The inputs of the first samples; by name where the data set gives dicts.

    Raises:
        ConfigError: there are dicts inside of dicts, or tuples, whose tensors have no known names.
    """
    split = dataset.train
    fetch = Fetch(split, seed=0, inputs=True, targets=False)
    first: Sequence[int] = range(min(len(split), _FIRST))
    if Split(split).batches is not None and Split(split).collate is None:
        first = max(own_minibatches(split, _FIRST, len(split)), key=len)[:_FIRST]  # others may differ in shape
    tensors, _ = fetch(0, first)
    names = fetch.names()
    if names and len(names) != len(tensors):
        raise ConfigError(
            f"dataset: the inputs {', '.join(names)} are {len(tensors)} tensors; a model that is cut along its graph "
            "takes one tensor for each name"
        )
    return dict(zip(names, tensors, strict=True)) if names else tensors


@contextmanager
def naming_types(module: nn.Module, compute: Callable[..., object], inputs: Sequence[Tensor]) -> Iterator[None]:
    """Says so if what fails inside does because the inputs are of another type than the weights.

    Args:
        module: has the weights.
        compute: the model, as a function of tensors.
        inputs: of some samples.

    Raises:
        ConfigError: the model computes the inputs if these have the type of its weights.
    """
    try:
        yield
    except (ConfigError, RuntimeError) as error:
        floating = list({weight.dtype for weight in module.parameters() if weight.is_floating_point()})
        others = [i for i, tensor in enumerate(inputs) if tensor.dtype not in floating]
        not_ids = [i for i in others if inputs[i].is_floating_point()]
        if not others or len(floating) != 1 or _computes(compute, inputs):
            raise
        for wrong in (not_ids, others):
            converted = [tensor.to(floating[0]) if i in wrong else tensor for i, tensor in enumerate(inputs)]
            if wrong and _computes(compute, converted):
                given = " and ".join(sorted({_name(inputs[i].dtype) for i in wrong}))
                wanted = _name(floating[0])
                raise ConfigError(
                    f"dataset: inputs are {given}, and the weights of the model {wanted}: return them as {wanted}, "
                    f'with .to(torch.{wanted}) or .astype("{wanted}")'
                ) from error
        raise


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


@torch.no_grad()
def _computes(compute: Callable[..., object], inputs: Sequence[Tensor]) -> bool:
    try:
        compute(*(tensor.clone() for tensor in inputs))
    except Exception:
        return False
    return True


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


_COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_COLORS = (1, 3, 4)
"""Numbers of channels by which an image is recognized whose channels come last."""
_AT_LEAST = ("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size", "max_length")
"""Options that may exceed what the data set has, but not fall short of it."""
_EXAMPLES = {
    "channels": 3,
    "classes": 10,
    "size": "[32,32]",
    "vocabulary_size": 10_000,
    "source_vocabulary_size": 10_000,
    "target_vocabulary_size": 10_000,
    "joint_vocabulary": "true",
    "padding": 0,
    "max_length": 256,
    "features": 4096,
}
"""Options that the data set fills in, with a value that works for some data."""


def from_data(model: Target, dataset: Any) -> dict[str, Any]:
    """The options of a model's target that its data set has to fill in, after a check of the options that are given.

    An attribute of the data set goes to the parameter of its name, unless the configuration has it. A parameter
    without a default is derived from the first sample, or from the labels, if the data set has no such attribute.

    Raises:
        ConfigError: a parameter without a default can neither be found nor derived, or the model is too small for the
            data set's tokens.
    """
    for name in _AT_LEAST:
        given, needed = model.options.get(name), getattr(dataset, name, None)
        if is_whole(given) and is_whole(needed) and given < needed:
            raise ConfigError(
                f"model.{name}={given}: less than the {needed} of the data set; model.{name}={needed} or null works"
            )
    known = {name: getattr(dataset, name) for name in _open(model, model.parameters()) if hasattr(dataset, name)}
    if "classes" in known and (count := class_count(dataset)) is not None:
        known["classes"] = count
    if is_whole(known.get("size")):
        known["size"] = (known["size"], known["size"])
    return known | derived_from_data(model, dataset)


def derived_from_data(model: Target, dataset: Any) -> dict[str, Any]:
    """The options among them that follow from samples and labels.

    Raises:
        ConfigError: an option does not follow from them.
    """
    needed = _open(model, model.parameters(required=True))
    return {name: _derived(model, dataset, name) for name in needed if not hasattr(dataset, name)}


def _open(model: Target, parameters: Collection[str]) -> list[str]:
    return [name for name in _EXAMPLES if name in parameters and model.options.get(name) is None]


def _derived(model: Target, dataset: Any, name: str) -> Any:
    if name == "classes":
        value, reason = _classes(dataset), "its labels cannot be had without reading every sample"
    elif name in ("channels", "size"):
        first = sample_of(dataset.train, 0)[0]
        is_image = isinstance(first, Tensor | np.ndarray) and first.ndim == 3
        if is_image and (first.shape[0] in _COLORS or first.shape[2] not in _COLORS):
            channels, height, width = first.shape
            return channels if name == "channels" else (height, width)
        value, reason = None, f"its first input is {form_of(first)}, no image (channels, height, width)"
    else:
        value, reason = None, "only that can tell"
    if value is not None:
        return value
    raise ConfigError(
        f"model.{name} is not set, and {model.path} needs it: the data object ({class_of(dataset)}) has no "
        f"attribute `{name}`, and {reason}; give it the attribute, or set model.{name}={_EXAMPLES[name]}"
    )


def _classes(dataset: Any) -> int | None:
    """From what the training split says of its classes, or the largest label."""
    if (count := class_count(dataset.train)) is not None:
        return count
    largest = [_largest_label(split) for split in (dataset.train, dataset.eval)]
    known = [label for label in largest if label is not None]
    return max(known) + 1 if len(known) == len(largest) else None


def _largest_label(split: Any) -> int | None:
    """The largest of the labels that a split lists; None without such a list, or if its sample has another label."""
    if (labels := known_labels(split)) is None:
        return None
    index = int(labels.flatten(1).amax(1).argmax()) if labels.ndim > 1 else int(labels.argmax())
    read = label_of(split, index)
    return int(labels.max()) if read is not None and int(read.max()) == int(labels.max()) else None
