"""The model as a chain of layers, with what it must know of the data: sizes of images, classes, vocabulary."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipetrain.arithmetic import ComputeOptions
from pipetrain.config.instantiate import Target
from pipetrain.config.schema import TrainConfig
from pipetrain.config.settings import Settings
from pipetrain.data.fetch import Fetch, form_of
from pipetrain.data.images.common import image_size
from pipetrain.data.ranges import class_count, known_labels, label_of
from pipetrain.data.samples import sample_of
from pipetrain.errors import ConfigError, is_whole
from pipetrain.models.chain import LayerChain
from pipetrain.models.conversion import Inputs, chain_of, is_cut_along_graph
from pipetrain.models.ties import untie

_FIRST = 5
"""Samples that a model is tried with before it is cut along its graph."""


def build_chain(
    model: Target, dataset: Any, seed: int, *, separate: bool = False, output: str | None = None
) -> LayerChain:
    """The model's layer chain, its initial weights drawn from the run's seed.

    Args:
        model: what returns it.
        dataset: what fills in its open options.
        seed: of the run.
        separate: True if each layer gets its own weight instead of a shared one.
        output: the entry of what the forward returns that goes to the loss; None: see `chain_of`.

    Raises:
        ConfigError: the target does not return a model, or refuses an option.
    """
    extra = from_data(model, dataset)
    torch.manual_seed(seed)
    module = model.build(**extra)
    if not isinstance(module, nn.Module | LayerChain):
        raise model.wrong_type_error(module, "an nn.Module or a pipetrain.LayerChain")
    chain = chain_of(module, first_inputs(dataset) if is_cut_along_graph(module) else (), output)
    if separate:
        untie(chain)
    return chain


def build_model(settings: Settings, dataset: Any) -> LayerChain:
    """The layer chain of a run's model."""
    return build_chain(settings.model.target, dataset, settings.seed, **settings.model.build_options)


def first_inputs(dataset: Any) -> Inputs:
    """The inputs of the first samples; by name where the data set gives dicts.

    Raises:
        ConfigError: there are dicts inside of dicts, or tuples, whose tensors have no known names.
    """
    fetch = Fetch(dataset.train, seed=0, inputs=True, targets=False)
    tensors, _ = fetch(0, range(min(len(dataset.train), _FIRST)))
    names = fetch.names()
    if names and len(names) != len(tensors):
        raise ConfigError(
            f"dataset: the inputs {', '.join(names)} are {len(tensors)} tensors; a model that is cut along its graph "
            "takes one tensor for each name"
        )
    return dict(zip(names, tensors, strict=True)) if names else tensors


def build_arithmetic(train: TrainConfig) -> ComputeOptions:
    """Precision, memory format and compilation of the layers."""
    return ComputeOptions(train.precision, train.channels_last, train.compile)


_COLORS = (1, 3, 4)


def from_data(model: Target, dataset: Any) -> dict[str, Any]:
    """The options of a model's target that its data set has to fill in, after a check of the options that are given.

    An attribute of the data set goes to the parameter of its name, unless the configuration has it. A parameter
    without a default is derived from the first sample, or from the labels, where the data set has no such attribute.

    Raises:
        ConfigError: a parameter without a default can neither be found nor derived, or the model is too small for the
            data set's tokens.
    """
    _check_room(model, dataset)
    given = {name: _given(dataset, name) for name in _open(model, model.parameters()) if hasattr(dataset, name)}
    return given | derived_from_data(model, dataset)


def _check_room(model: Target, dataset: Any) -> None:
    """A model may know more tokens and longer samples than there are, but not fewer or shorter."""
    for name in _ROOM:
        given, needed = model.options.get(name), getattr(dataset, name, None)
        if is_whole(given) and is_whole(needed) and given < needed:
            raise ConfigError(
                f"model.{name}={given}: less than the {needed} of the data set; model.{name}={needed} or null works"
            )


def derived_from_data(model: Target, dataset: Any) -> dict[str, Any]:
    """The options among them that follow from samples and labels.

    Raises:
        ConfigError: an option does not follow from them.
    """
    needed = _open(model, model.parameters(required=True))
    return {name: _derived(model, dataset, name) for name in needed if not hasattr(dataset, name)}


def _open(model: Target, parameters: Collection[str]) -> list[str]:
    return [name for name in _DERIVED if name in parameters and model.options.get(name) is None]


def _given(dataset: Any, name: str) -> Any:
    value = getattr(dataset, name)
    if name == "classes" and (count := class_count(dataset)) is not None:
        return count
    return image_size(value) if name == "size" and is_whole(value) else value


def _derived(model: Target, dataset: Any, name: str) -> Any:
    value = _DERIVED[name](dataset)
    if value is not None:
        return value
    raise ConfigError(
        f"model.{name} is not set, and {model.path} needs it: the data object ({type(dataset).__name__}) has no "
        f"attribute `{name}`, and {_seen(name, dataset)}; give it the attribute, or set model.{name}={_EXAMPLES[name]}"
    )


def _seen(name: str, dataset: Any) -> str:
    """Reason why the option does not follow from samples and labels."""
    if name == "classes":
        return "its labels cannot be had without reading every sample"
    if name in _ONLY_TOLD:
        return "only that can tell"
    return f"its first input is {form_of(sample_of(dataset.train, 0)[0])}, no image (channels, height, width)"


def _shape(dataset: Any) -> Sequence[int] | None:
    """(channels, height, width) of the first sample."""
    image = sample_of(dataset.train, 0)[0]
    if not isinstance(image, Tensor | np.ndarray) or image.ndim != 3:
        return None
    last = image.shape[0] not in _COLORS and image.shape[2] in _COLORS
    return None if last else image.shape


def _channels(dataset: Any) -> int | None:
    shape = _shape(dataset)
    return None if shape is None else shape[0]


def _size(dataset: Any) -> tuple[int, int] | None:
    shape = _shape(dataset)
    return None if shape is None else (shape[1], shape[2])


def _classes(dataset: Any) -> int | None:
    """From what the training split says of its classes, or the largest label."""
    if (count := class_count(dataset.train)) is not None:
        return count
    splits = [(split, known_labels(split)) for split in (dataset.train, dataset.eval)]
    largest = [_largest(split, labels) for split, labels in splits if labels is not None]
    found = [label for label in largest if label is not None]
    return max(found) + 1 if len(found) == len(splits) else None


def _largest(split: Any, labels: Tensor) -> int | None:
    """The largest of the labels of a split, if its sample has it, too."""
    index = int(labels.flatten(1).amax(1).argmax()) if labels.ndim > 1 else int(labels.argmax())
    read = label_of(split, index)
    return int(labels.max()) if read is not None and int(read.max()) == int(labels.max()) else None


def _told_by_nothing(_dataset: Any) -> None:
    return None


_ROOM = ("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size", "max_length")
_ONLY_TOLD = {
    "vocabulary_size": 10_000,
    "source_vocabulary_size": 10_000,
    "target_vocabulary_size": 10_000,
    "joint_vocabulary": "true",
    "padding": 0,
    "max_length": 256,
    "features": 4096,
}
_DERIVED: dict[str, Callable[[Any], Any]] = {
    "channels": _channels,
    "classes": _classes,
    "size": _size,
    **dict.fromkeys(_ONLY_TOLD, _told_by_nothing),
}
_EXAMPLES = {"channels": 3, "classes": 10, "size": "[32,32]", **_ONLY_TOLD}
