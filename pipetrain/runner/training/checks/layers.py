"""Trial computations of the layers: what a pipeline, recomputation and lower precision need of them."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.seeding import python_generators_kept
from pipetrain.engine.stage.saved_tensors import WeightCasts
from pipetrain.engine.tensors import Tensors, close, differentiable, new_leaves_sharing_memory, storage_pointers

Copied = TypeVar("Copied")
OTHER_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""Errors of a layer's forward, which are not for this check to tell."""
_SAMPLES = 4
_PLAIN = ComputeOptions()


def weight_derived_layers(chain: LayerChain, inputs: Tensors, arithmetic: ComputeOptions = _PLAIN) -> list[str]:
    """The layers whose backward reads a tensor computed from weights in the forward, such as weight_norm's.

    If a method's backward reads other weights than its forward, such a tensor, being no view of a weight, stays as
    the forward saved it. Each layer runs three times: a saved tensor that is the same for other inputs but not for
    other weights depends on the weights alone. Nothing is known if inputs cannot be changed. Casts of weights that the
    arithmetic makes do not count, as they are made again for the backward.

    Raises:
        ConfigError: a layer uses a parameter that is not registered, or one that its forward changes.
    """
    probe = copy_of(chain)
    first = tuple(tensor[:_SAMPLES].clone() for tensor in inputs)
    # for integers, which may be indices, the last sample over and over
    second = tuple(
        torch.randn_like(a) if tensor.is_floating_point() else tensor[-1:].expand_as(a).clone()
        for a, tensor in zip(first, inputs, strict=True)
    )
    derived = []
    for label, layer in zip(probe.labels, probe.layers, strict=True):
        _refuse_max_norm(label, layer)
        second = tuple(_unlike(a, b) for a, b in zip(first, second, strict=True))
        with _beginning_with(layer, 0.25):
            once, first_out = _saved(layer, first, label, arithmetic)
        with _beginning_with(layer, 0.5):
            again, second_out = _saved(layer, second, label, arithmetic)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(1.25).add_(0.125)
        with _beginning_with(layer, 0.25):
            changed, _ = _saved(layer, first, label, arithmetic)
        varied = not all(map(_same, first, second))
        if varied and any(_same(a, b) and not _same(a, c) for a, b, c in zip(once, again, changed, strict=False)):
            derived.append(label)
        first, second = first_out, second_out
    return derived


def copy_of(chain: LayerChain) -> LayerChain:
    """A copy to try things on.

    Raises:
        ConfigError: a layer has a tensor computed from weights as an attribute, as torch's older weight_norm.
    """
    if (copied := _copied(chain)) is None:
        raise ConfigError(
            "model: cannot be copied, as a module has a tensor computed from weights among its attributes; "
            "torch.nn.utils.parametrizations has weight_norm, spectral_norm and others that can"
        )
    return copied


def _copied(original: Copied) -> Copied | None:
    try:
        return copy.deepcopy(original)
    except RuntimeError:
        return None


def check_forwards(
    chain: LayerChain, inputs: Tensors, cuts: Collection[int], arithmetic: ComputeOptions, *, overlap: bool = True
) -> tuple[list[str], list[int]]:
    """Checks, by forwards of each layer, that a stage can give it its weights, and get its gradients across cuts.

    Returns warnings of buffers that training changes and checkpoints do not have, and of cuts without a gradient; and
    the layers that change an input in place.

    Args:
        chain: the model.
        inputs: of a few samples.
        cuts: first layers of the stages but the first.
        arithmetic: of the checks.
        overlap: True if a forward may come between that of a microbatch and its backward.

    Raises:
        ConfigError: a layer uses a parameter that is not registered, a complex tensor would have to bring a gradient
            back across a cut, or a forward overwrites what the backward of another microbatch needs.
    """
    notes: list[str] = []
    in_place: list[int] = []
    with torch.enable_grad(), arithmetic.computing(inputs[0].device):
        # in evaluation buffers stay as they are, and nothing is drawn
        with chain.evaluating():
            in_place += _check_layers(chain, arithmetic.cast_inputs(inputs), cuts, [], training=False, overlap=False)
        # what only training does; few samples may not be enough for it
        with torch.random.fork_rng(devices=[]), python_generators_kept(), suppress(*OTHER_ERRORS):
            in_place += _check_layers(
                chain, arithmetic.cast_inputs(inputs), cuts, notes, training=True, overlap=overlap
            )
    return notes, in_place


def _check_layers(
    chain: LayerChain, tensors: Tensors, cuts: Collection[int], notes: list[str], *, training: bool, overlap: bool
) -> list[int]:
    """The layers that change an input in place.

    Checks the layers one by one, each on a copy, because a layer may keep tensors that it has computed.
    """
    in_place: list[int] = []
    for index, (label, original) in enumerate(zip(chain.labels, chain.layers, strict=True)):
        if (layer := _copied(original)) is None:
            if original.training:
                return in_place
            layer = original
        leaves, kept = _leaves_of(layer), layer.state_dict().keys()
        memory = {name: leaf.data_ptr() for name, leaf in leaves.items() if leaf.layout == torch.strided}
        unsaved = {name: (each, each._version) for name, each in layer.named_buffers() if name not in kept}
        # clones, as the first operation may be in place
        inputs = tuple(each.clone() for each in tensors)
        versions = [each._version for each in inputs]
        scripted = any(isinstance(part, torch.jit.ScriptModule) for part in layer.modules())
        result = layer(*inputs) if scripted else functional_call(layer, leaves, inputs)
        in_place.extend(index for each, version in zip(inputs, versions, strict=True) if each._version != version)
        moved = [name for name, place in memory.items() if leaves[name].data_ptr() != place]
        notes += [
            f"warning: training changes the buffer {name.removeprefix('child.')} of layer {label}, which checkpoints "
            "do not have (persistent=False): a resumed run begins with its initial value"
            for name, (buffer, version) in unsaved.items()
            if buffer._version != version
        ]
        _refuse_replaced(label, moved, sorted(layer.state_dict().keys() - kept))
        for carrier in stateful_layers(layer).values():
            carrier.carried = None
        outputs = result if isinstance(result, tuple) else (result,)
        if not scripted:  # which has computed with the parameters themselves
            known = [*leaves.values(), *inputs, *tensors]
            _refuse_hidden_parameters(label, outputs, known, partial(_called, layer, leaves, tensors))
            if overlap:
                _called(layer, leaves, tensors)
            _refuse_backward(label, leaves)
            if training and (overlap or index in cuts):
                _refuse_overwritten(label, outputs)
                _refuse_sparse(label, leaves)
                if index in cuts and any(each.requires_grad and each.grad is None for each in tensors):
                    notes.append(
                        f"warning: layer {label}, the first of its stage, passes no gradient back for some of its "
                        "inputs: weights before it, which plain training would leave alone, get a gradient of 0 and "
                        "still decay"
                    )
        if index + 1 in cuts and any(each.is_complex() and each.requires_grad for each in outputs):
            raise ConfigError(
                f"model: layer {label}, the last of its stage, returns a complex tensor, and only real ones bring "
                "gradients back from the next stage; cut the model elsewhere, or return torch.view_as_real of it"
            )
        tensors = tuple(each.detach().requires_grad_(each.requires_grad) for each in outputs)
    return in_place


def _refuse_replaced(label: str, moved: Sequence[str], new: Sequence[str]) -> None:
    """Refuses a layer whose forward has put other memory in the place of weights, or made buffers."""
    what = f"model: the forward of layer {label}"
    if moved:
        raise ConfigError(
            f"{what} assigns to {moved[0].removeprefix('child.')}.data, which a stage does not train; change the "
            "weight in place, or compute with a changed copy"
        )
    if new:
        raise ConfigError(
            f"{what} makes the buffer {new[0].removeprefix('child.')}, which a checkpoint would lack; make it in "
            "__init__, or with persistent=False if each forward can make it again"
        )


def _refuse_overwritten(label: str, outputs: Tensors) -> None:
    """Goes back through the outputs of a layer, which it refuses if another forward has overwritten what that needs."""
    returned = [each for each in outputs if each.requires_grad]
    try:
        torch.autograd.backward(returned, [torch.ones_like(each) for each in returned])
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            raise ConfigError(
                f"model: the forward of layer {label} changes a buffer in place that the backward of an earlier "
                "microbatch still needs; compute with a clone() of it"
            ) from error
        raise


def _refuse_backward(label: str, leaves: Mapping[str, Tensor]) -> None:
    if any(leaf.grad is not None for leaf in leaves.values()):
        raise ConfigError(
            f"model: the forward of layer {label} calls backward(), which adds to the gradients of weights; "
            "torch.autograd.grad works"
        )


def _refuse_sparse(label: str, leaves: Mapping[str, Tensor]) -> None:
    for name, leaf in leaves.items():
        if leaf.grad is not None and leaf.grad.layout != torch.strided:
            raise ConfigError(
                f"model: layer {label} makes a sparse gradient of {name.removeprefix('child.')}; stages exchange and "
                "sum dense gradients: sparse=False"
            )


def _leaves_of(layer: nn.Module) -> dict[str, Tensor]:
    parameters = dict(layer.named_parameters())
    return new_leaves_sharing_memory(parameters, {name: each.requires_grad for name, each in parameters.items()})


def check_recomputation(chain: LayerChain, inputs: Tensors) -> None:
    """Checks that a recomputation computes what the forward did.

    Raises:
        ConfigError: a forward changes something that Python keeps, and does so each time; or it computes something
            else the second time, from a buffer that the first one has changed or by random numbers of its own.
    """
    # the recorder of graphs comes with it
    from pipetrain.graph.python_state import changes, python_state

    probe = copy_of(chain)
    tensors = tuple(tensor[:_SAMPLES] for tensor in inputs)
    results: list[Tensors] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        states = []
        for _ in range(3):
            torch.default_generator.manual_seed(0)
            for carrier in stateful_layers(probe.module).values():
                carrier.carried = None
            with python_generators_kept():
                outputs = probe(*(tensor.clone() for tensor in tensors))
            results.append(outputs if isinstance(outputs, tuple) else (outputs,))
            states.append(python_state(probe.module))
    if places := [place for place in changes(states[0], states[1], ()) if states[1].get(place) != states[2].get(place)]:
        part = "" if not places[0].path else f" of {places[0].path}"
        raise ConfigError(
            f"train.recompute: the forward{part} {places[0].described(probe.module)}, and a recomputation would do so "
            "again; train.recompute=false stores activations instead"
        )
    if not all(map(close, results[0], results[1])):
        raise ConfigError(
            "train.recompute: for the same samples the model computes something else the second time, from buffers "
            "that it has changed, as spectral_norm does, or by random numbers of its own; train.recompute=false stores "
            "activations instead"
        )


def _unlike(first: Tensor, second: Tensor) -> Tensor:
    """`second`; random numbers if it equals `first` and is no integer."""
    if not differentiable(second) or not _same(first, second):
        return second
    return torch.randn_like(second).requires_grad_(second.requires_grad)


def _saved(layer: nn.Module, inputs: Tensors, label: str, arithmetic: ComputeOptions) -> tuple[list[Tensor], Tensors]:
    """The saved tensors that are no view and no cast of a weight, and the outputs."""
    leaves = _leaves_of(layer)
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
        result = _called(layer, leaves, inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    _refuse_hidden_parameters(label, outputs, [*leaves.values(), *inputs], partial(_called, layer, leaves, inputs))
    # after the first layer a gradient flows to the inputs as well, and autograd saves what that needs
    return saved, tuple(output.detach().requires_grad_(differentiable(output)) for output in outputs)


@contextmanager
def _beginning_with(layer: nn.Module, state: float) -> Iterator[None]:
    """Makes recurrent modules that receive no state begin with this one instead of zeros.

    Results of zeros and their weights are the same for all inputs, and activations nevertheless.
    """

    def forward_of(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _ZerosAs(state):
            return original(*args, **kwargs)

    recurrent = [module for module in layer.modules() if isinstance(module, nn.RNNBase | nn.RNNCellBase)]
    try:
        for module in recurrent:
            module.forward = partial(forward_of, module.forward)
        yield
    finally:
        for module in recurrent:
            del module.forward


class _ZerosAs(TorchFunctionMode):
    """Fills what torch.zeros makes with another number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.fill_(self._value) if func is torch.zeros else made


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _called(layer: nn.Module, leaves: dict[str, Tensor], inputs: Tensors) -> Any:
    """The result of the layer with these weights, for copies of inputs, which it may change in place."""
    with torch.enable_grad():
        return functional_call(layer, leaves, tuple(each.clone() for each in inputs))


def _refuse_hidden_parameters(label: str, outputs: Tensors, known: list[Tensor], again: Callable[[], Any]) -> None:
    """Refuses a layer whose outputs depend on a leaf that is not known, and that is the same one when called again.

    A forward may make a leaf for itself, to take a gradient by it.
    """
    hidden = _leaves_behind(outputs, known)
    if not hidden:
        return
    result = again()
    others = _leaves_behind(result if isinstance(result, tuple) else (result,), known)
    if kept := [leaf for leaf in hidden if any(leaf is other for other in others)]:
        raise ConfigError(
            f"model: layer {label} uses a parameter of shape {tuple(kept[0].shape)} that none of its modules "
            "registers; assign it as an attribute of the module that uses it"
        )


def _leaves_behind(outputs: Tensors, known: list[Tensor]) -> list[Tensor]:
    """The leaves of autograd that outputs were computed from, but for the known ones."""
    found, known_ids = list[Tensor](), {id(leaf) for leaf in known}
    waiting, seen = [output.grad_fn for output in outputs if output.grad_fn is not None], set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [parent for parent, _ in node.next_functions if parent is not None]
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in known_ids:
            found.append(variable)
    return found


def _refuse_max_norm(label: str, layer: nn.Module) -> None:
    for module in layer.modules():
        if getattr(module, "max_norm", None) is not None:
            raise ConfigError(
                f"model: layer {label} is an embedding with max_norm={module.max_norm}, which changes its weights in "
                "the forward, unseen by any weight version; use max_norm=None"
            )
