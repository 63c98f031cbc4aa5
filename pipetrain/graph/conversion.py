"""How a user's module becomes a chain of layers."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain

Inputs = Mapping[str, Tensor] | Sequence[Tensor]
"""Inputs of a few samples: by the names of the forward's parameters, or in their order."""


def chain_of(model: nn.Module | LayerChain, inputs: Inputs = (), output: str | None = None) -> LayerChain:
    """The layer chain of a model: its own, the children of an `nn.Sequential`, or the parts of its graph.

    Args:
        model: a module, or a chain already.
        inputs: what a module that is cut along its graph is tried with; a chain needs none.
        output: which entry of the tuple or dict that such a module returns goes to the loss; None: its `logits`, or the
            first of a dict, or all of a tuple.

    Raises:
        ConfigError: the model is something else, or its forward does what no graph can repeat.
    """
    if isinstance(model, nn.Module | LayerChain):
        _check_module(model)
    if is_cut_along_graph(model):
        if not isinstance(model, nn.Module) or not inputs:
            raise ConfigError(
                f"model: {type(model).__name__} cannot be cut into stages: return an nn.Sequential whose children are "
                "the layers, or a pipetrain.LayerChain(module, layers); another nn.Module needs inputs to be tried with"
            )
        # recording imports modules of torch that nothing else needs
        from pipetrain.graph.cutting import cut_along_graph
        from pipetrain.graph.example import Example

        return cut_along_graph(model, Example.of(inputs), output)
    if output is not None:
        raise ConfigError(
            f"model.output={output}: a {type(model).__name__} passes all outputs of its last layer to the loss; leave "
            "it out"
        )
    if isinstance(model, LayerChain):
        return model
    assert isinstance(model, nn.Sequential)
    return LayerChain.of_sequential(model)


def _check_module(model: nn.Module | LayerChain) -> None:
    """Checks that a model has all its weights, and a forward in Python.

    Raises:
        ConfigError: it is compiled or scripted as a whole, or a lazy layer of it was never called.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError("model: a torch.jit module cannot be cut; return the module that it was made from")
    if "_orig_mod" in getattr(model, "_modules", ()):
        raise ConfigError(
            "model: a model compiled as a whole cannot be cut; return the module itself, and set train.compile=true, "
            "which compiles each layer"
        )
    module = model.module if isinstance(model, LayerChain) else model
    lazy = next((name for name, weight in module.named_parameters() if is_lazy(weight)), None)
    if lazy is not None:
        raise ConfigError(
            f"model: {lazy} of {type(module).__name__} has no shape yet: its lazy layer was never called; call the "
            "model once before you return it"
        )


def is_cut_along_graph(model: object) -> bool:
    """True if a model is neither a chain nor an `nn.Sequential` of layers without hooks."""
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return bool(model._forward_hooks or model._forward_pre_hooks)
    return not isinstance(model, LayerChain)
