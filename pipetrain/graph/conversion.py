"""How a user's module becomes a chain of layers, and whether these compute what it does."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain

Inputs = Mapping[str, Tensor] | Sequence[Tensor]
"""Inputs of a few samples: by the names of the forward's parameters, or in their order."""
_MIXED_TOLERANCE = 0.05
"""Relative, in lower precision: where a cast is left out, the numbers are only more precise."""
_PLAIN = ComputeOptions()
_OTHER_IN_EVALUATION = (
    "warning: in evaluation the layers return other outputs than the forward of {} itself, for example because torch's "
    "fast path of nn.TransformerEncoder clears padded positions (enable_nested_tensor=False turns it off); metrics are "
    "those of the layers"
)


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
    from pipetrain.graph.example import Example

    example, name = Example.of(inputs), type(chain.module).__name__
    if not trains_like_eager(chain, example, output, seed):
        raise ConfigError(
            f"model: {name} cannot be cut into stages: in training, its layers give different outputs or gradients "
            "than its own forward; return an nn.Sequential whose children are the layers, or a "
            "pipetrain.LayerChain(module, layers)"
        )
    tolerance = _MIXED_TOLERANCE if arithmetic.mixed else TOLERANCE
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
