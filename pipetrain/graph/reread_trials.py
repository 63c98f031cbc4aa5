"""What layers compute when a stage reads other weights for the backward, or computes a forward again."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.seeding import python_generators_kept
from pipetrain.engine.stage.saved_tensors import WeightCasts
from pipetrain.engine.tensors import Tensors, close, differentiable, storage_pointers
from pipetrain.graph.layer_trials import called, copy_of, leaves_of
from pipetrain.graph.python_state import changes, python_state

_SAMPLES = 4
_PLAIN = ComputeOptions()


def weight_derived_layers(chain: LayerChain, inputs: Tensors, arithmetic: ComputeOptions = _PLAIN) -> list[str]:
    """The layers whose backward reads a tensor computed from weights in the forward, such as weight_norm's.

    If a method's backward reads other weights than its forward, such a tensor, being no view of a weight, stays as
    the forward saved it. Each layer runs three times: a saved tensor that is the same for other inputs but not for
    other weights depends on the weights alone. Nothing is known if inputs cannot be changed. Casts of weights that the
    arithmetic makes do not count, as they are made again for the backward.

    Raises:
        ConfigError: a layer uses a parameter that its forward changes.
    """
    probe = copy_of(chain)
    first, second = tuple(tensor[:_SAMPLES].clone() for tensor in inputs), tuple(map(_other_samples, inputs))
    derived = []
    for label, layer in zip(probe.labels, probe.layers, strict=True):
        _refuse_max_norm(label, layer)
        second = tuple(_unlike(a, b) for a, b in zip(first, second, strict=True))
        once, first_out = _saved(layer, first, arithmetic)
        again, second_out = _saved(layer, second, arithmetic)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(1.25).add_(0.125)
        changed, _ = _saved(layer, first, arithmetic)
        if all(map(_same, first, second)):
            known = False
        elif _is_recurrent(layer):
            known = any(map(parametrize.is_parametrized, layer.modules()))
        else:
            known = any(_same(a, b) and not _same(a, c) for a, b, c in zip(once, again, changed, strict=False))
        derived += [label] if known else []
        first, second = first_out, second_out
    return derived


def check_recomputation(chain: LayerChain, inputs: Tensors) -> None:
    """Checks that a recomputation computes what the forward did.

    Raises:
        ConfigError: a forward changes something that Python keeps, and does so each time; or it computes something
            else the second time, from a buffer that the first one has changed or by random numbers of its own.
    """
    probe, results, states = copy_of(chain), list[Tensors](), []
    for _ in range(3):
        results.append(_computed_anew(probe, tuple(tensor[:_SAMPLES].clone() for tensor in inputs)))
        states.append(python_state(probe.module))
    if places := [place for place in changes(states[0], states[1], ()) if states[1].get(place) != states[2].get(place)]:
        part = "" if not places[0].path else f" of {places[0].path}"
        raise ConfigError(
            f"train.recompute: the forward{part} {places[0].described(probe.module)}, and a recomputation would do so "
            "again; train.recompute=false stores activations instead"
        )
    if not all(map(close, results[0], results[1])):
        raise ConfigError(
            "train.recompute: the forward is not repeatable: it changes buffers that it reads, as spectral_norm does, "
            "or draws from its own generator; train.recompute=false stores activations instead"
        )


@torch.no_grad()
def _computed_anew(chain: LayerChain, inputs: Tensors) -> Tensors:
    """The outputs with the same random numbers each time, from no recurrent state."""
    for carrier in stateful_layers(chain.module).values():
        carrier.carried = None
    with torch.random.fork_rng(devices=[]), python_generators_kept():
        torch.default_generator.manual_seed(0)
        outputs = chain(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _other_samples(tensor: Tensor) -> Tensor:
    """Random samples in place of the tried ones; integers may be indices, so there the last sample is repeated."""
    first = tensor[:_SAMPLES]
    return torch.randn_like(first) if tensor.is_floating_point() else tensor[-1:].expand_as(first).clone()


def _is_recurrent(layer: nn.Module) -> bool:
    """True if activations may be computed from weights alone: from initial states of zeros."""
    return any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in layer.modules())


def _unlike(first: Tensor, second: Tensor) -> Tensor:
    """`second`; random numbers if it equals `first` and is no integer."""
    if not differentiable(second) or not _same(first, second):
        return second
    return torch.randn_like(second).requires_grad_(second.requires_grad)


def _saved(layer: nn.Module, inputs: Tensors, arithmetic: ComputeOptions) -> tuple[list[Tensor], Tensors]:
    """The saved tensors that are no view and no cast of a weight, and the outputs."""
    leaves = leaves_of(layer)
    weights = storage_pointers(leaves.values())
    casts = WeightCasts(leaves)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        known = tensor.layout != torch.strided or tensor.untyped_storage().data_ptr() in weights
        if not known and casts.of(tensor) is None:
            saved.append(tensor.detach().clone())
        return tensor

    torch.default_generator.manual_seed(0)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.enable_grad(), hooks, casts, arithmetic.computing(inputs[0].device):
        result = called(layer, leaves, inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    # after the first layer a gradient flows to the inputs as well, and autograd saves what that needs
    return saved, tuple(output.detach().requires_grad_(differentiable(output)) for output in outputs)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _refuse_max_norm(label: str, layer: nn.Module) -> None:
    for module in layer.modules():
        if getattr(module, "max_norm", None) is not None:
            raise ConfigError(
                f"model: layer {label} is an embedding with max_norm={module.max_norm}, which changes its weights in "
                "the forward, unseen by any weight version; use max_norm=None"
            )
