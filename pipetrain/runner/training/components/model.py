"""The model as a chain of layers, with what it must know of the data: sizes of images, classes, vocabulary."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.data.interface import Split
from pipetrain.data.loader import Loader
from pipetrain.data.ranges import class_count
from pipetrain.data.sample_facts import first_inputs, image_form, shown_classes
from pipetrain.data.samples import class_of
from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.models.chain import LayerChain, sharing_buffers
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.models.ties import untie
from pipetrain.engine.seeding import python_draws
from pipetrain.graph.conversion import chain_of, check_cut, is_cut_along_graph
from pipetrain.graph.example import Example
from pipetrain.graph.module_checks import check_batch_norm, check_gradients
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.settings import ModelSettings, Settings
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.data import Data


def build_model(settings: Settings, dataset: Any) -> LayerChain:
    """The chain of a run's model, whose open options the data set fills in; the seed draws its initial weights."""
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


def check_model(settings: Settings, chain: LayerChain, data: Data) -> Iterator[str]:
    """Notes of the model on its layers, and on options that follow from the data."""
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


def check_stateful_data(chain: LayerChain, loaders: Mapping[str, Loader]) -> None:
    """Raises a ConfigError if layers carry state, but row b of a minibatch does not continue row b of the last one."""
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


def model_options(model: ModelSettings, dataset: Any) -> dict[str, Any]:
    """What a model's target is called with beside its own options: what the data set fills in, and weights by name."""
    options = from_data(model.target, dataset)
    if model.constructor_takes_weights:
        options["weights"] = model.weights
    return options


@contextmanager
def naming_types(module: nn.Module, compute: Callable[..., object], inputs: Sequence[Tensor]) -> Iterator[None]:
    """Says so if what fails inside does because the inputs are of another type than the weights.

    Raises:
        ConfigError: the model computes the inputs if these have the type of the weights of `module`.
    """
    try:
        yield
    except (ConfigError, RuntimeError) as error:
        floating = list({weight.dtype for weight in module.parameters() if weight.is_floating_point()})
        if len(floating) != 1 or not (wrong := _wrong_types(compute, inputs, floating[0])):
            raise
        given, wanted = " and ".join(sorted(map(_name, wrong))), _name(floating[0])
        raise ConfigError(
            f"dataset: inputs are {given}, and the weights of the model {wanted}: return them as {wanted}, "
            f'with .to(torch.{wanted}) or .astype("{wanted}")'
        ) from error


def _wrong_types(compute: Callable[..., object], inputs: Sequence[Tensor], wanted: torch.dtype) -> set[torch.dtype]:
    """The types of inputs that the model takes as `wanted` alone: of real numbers, or also of whole ones."""
    others = {tensor.dtype for tensor in inputs} - {wanted}
    if not others or _computes(compute, inputs):
        return set()
    for wrong in ({kind for kind in others if kind.is_floating_point}, others):  # whole numbers may be ids
        if wrong and _computes(compute, [each.to(wanted) if each.dtype in wrong else each for each in inputs]):
            return wrong
    return set()


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


@torch.no_grad()
def _computes(compute: Callable[..., object], inputs: Sequence[Tensor]) -> bool:
    try:
        compute(*(tensor.clone() for tensor in inputs))
    except Exception:
        return False
    return True


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
                f"model.{name}={given}: below the {needed} of the data set; model.{name}={needed} or null works"
            )
    known = {name: getattr(dataset, name) for name in _open(model, model.parameters()) if hasattr(dataset, name)}
    if "classes" in known and (count := class_count(dataset)) is not None:
        known["classes"] = count
    if is_whole(known.get("size")):
        known["size"] = (known["size"], known["size"])
    return known | derived_from_data(model, dataset)


def derived_from_data(model: Target, dataset: Any) -> dict[str, Any]:
    """The options among them that follow from samples and labels; raises a ConfigError for one that does not."""
    needed = _open(model, model.parameters(required=True))
    return {name: _derived(model, dataset, name) for name in needed if not hasattr(dataset, name)}


def derived_notes(model: Target, dataset: Any) -> list[str]:
    """A note on the options that follow from samples and labels."""
    derived = derived_from_data(model, dataset)
    values = ", ".join(f"model.{name}={value}" for name, value in derived.items())
    return [f"{values}: as the data show, which have no such attributes"] if derived else []


def _open(model: Target, parameters: Collection[str]) -> list[str]:
    return [name for name in _EXAMPLES if name in parameters and model.options.get(name) is None]


def _derived(model: Target, dataset: Any, name: str) -> Any:
    value = None
    if name == "classes":
        value = shown_classes(dataset)
    elif name in ("channels", "size"):
        value = image_form(dataset).get(name)
    if value is None:
        raise ConfigError(
            f"model.{name} is not set, {model.path} needs it, and the data object ({class_of(dataset)}) has no "
            f"attribute `{name}`; set model.{name}={_EXAMPLES[name]}, or give it the attribute"
        )
    return value
