"""Operations, queued in the current stream, and carried out there by the CPU's kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from support.fake_gpu.host_waits import NAME, blocked, host_wait
from support.fake_gpu.kernels import CPU, OWN_KERNELS, aten, fresh, placed, resized
from support.fake_gpu.memory import is_fake, number_in_locked_memory, on_host
from support.fake_gpu.streams import current_stream
from support.fake_gpu.trees import tensors_in, tree_of

_REHEARSED = {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", "aten::native_batch_norm"}
RENAMED = {"convolution_overrideable": "convolution", "convolution_backward_overrideable": "convolution_backward"}


def carry_out(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every operation with a tensor of the device comes here, below autograd."""
    name, tags = op._schema.name.removeprefix("aten::"), op.tags
    if name in OWN_KERNELS:
        return OWN_KERNELS[name](*args, **kwargs)
    returns = op._schema.returns
    if (
        name == "set_"
        or torch.Tag.inplace_view in tags
        or any(r.alias_info and not r.alias_info.is_write for r in returns)
    ):
        return op.redispatch(CPU, *args, **kwargs)  # which looks at shapes alone
    if name in ("empty", "empty_strided"):
        x = op(*args, **_moved(kwargs, "meta"))
        return fresh(x.size(), x.stride(), x.dtype)
    args = _with_tensors(op, args)
    _check_devices(name, args, kwargs)
    if name in RENAMED:
        # the backward takes the sizes of the bias, which the other does not ask for
        args = (*args[:3], [args[0].shape[1]], *args[3:]) if "backward" in name else args
        op = getattr(aten, RENAMED[name]).default
    if torch.Tag.nondeterministic_seeded in tags and (drawn := _drawn(op, args, kwargs)) is not None:
        return drawn
    if _needs_values(name, tags, args):
        return _carried_out_now(op, args, kwargs)
    return _queued(op, args, kwargs)


def _with_tensors(op: Any, args: Any) -> Any:
    """The arguments, with tensors without dimensions for numbers where the operation takes tensors."""
    kinds = [str(argument.type) for argument in op._schema.arguments]
    return tuple(
        torch.tensor(arg) if kind == "Tensor" and isinstance(arg, (int, float)) else arg
        for kind, arg in zip(kinds, args, strict=False)
    )


def _queued(op: Any, args: Any, kwargs: Any) -> Any:
    """The tensors that the operation will have written when the current stream gets there."""
    places = _results(op, args, kwargs)
    here, named = tree_of(on_host, args), tree_of(on_host, _moved(kwargs, "cpu"))
    written = [on_host(place) if new else None for place, new in places]
    learns = torch.is_grad_enabled()  # some kernels then write more

    def run() -> None:
        try:
            with torch.set_grad_enabled(learns):
                found = op(*here, **named)
        except Exception as error:
            raise RuntimeError(f"{op}: {error}") from error
        found = found if isinstance(found, (tuple, list)) and len(op._schema.returns) != 0 else (found,)
        flat = [*tensors_in(found)] if any(isinstance(f, (list, tuple)) for f in found) else found
        for place, value in zip(written, flat, strict=False):
            if isinstance(place, torch.Tensor) and not (value is None and place.numel() == 0):  # which nobody asked for
                if value is None or value.size() != place.size():
                    raise RuntimeError(
                        f"{op}: foreseen {place.size()}, found {value if value is None else value.size()}"
                    )
                place.copy_(value)

    current_stream().put(run)
    return _shaped(op, [place for place, _ in places])


def _results(op: Any, args: Any, kwargs: Any) -> list[tuple[Any, bool]]:
    """What the operation returns, and whether it is new memory; its kernel for shapes alone says of which shape."""
    arguments = op._schema.arguments
    given = {a.name: kwargs.get(a.name, args[i] if i < len(args) else None) for i, a in enumerate(arguments)}
    changed = [a for a in arguments if a.alias_info and a.alias_info.is_write]
    outs = [given[a.name] for a in changed if a.is_out]
    returns = op._schema.returns
    sized = op._schema.name == "aten::index" or not any(isinstance(o, torch.Tensor) and o.numel() == 0 for o in outs)
    if sized and all(r.alias_info for r in returns):
        return [(given[a.name], False) for a in changed][: len(returns)]
    # some kernels for shapes alone say otherwise than the CPU's, which then tells by zeros
    device = "cpu" if op._schema.name in _REHEARSED else "meta"
    shapes, named = (tree_of(partial(_shape, device=device), each) for each in (args, _moved(kwargs, device)))
    found = op(*shapes, **named)
    if all(r.alias_info for r in returns):
        for out, shape in zip(outs, [named[a.name] for a in changed if a.is_out], strict=True):
            if out.size() != shape.size():
                resized(out, shape.size(), shape.stride())
        return [(out, False) for out in outs]
    found = found if isinstance(found, (tuple, list)) else [found]
    own = {next(iter(a.alias_info.before_set)): given[a.name] for a in changed}
    if len(found) != len(returns):  # a list of tensors
        return [(fresh(f.size(), f.stride(), f.dtype), True) for f in found]
    return [
        (own[next(iter(r.alias_info.before_set))], False) if r.alias_info
        else (fresh(f.size(), f.stride(), f.dtype) if isinstance(f, torch.Tensor) else f, True)
        for r, f in zip(returns, found, strict=True)
    ]  # fmt: skip


def _shaped(op: Any, places: list[Any]) -> Any:
    returns = op._schema.returns
    if len(returns) == 1 and not str(returns[0].type).startswith("List"):
        return places[0]
    return None if not returns else places if len(returns) == 1 else tuple(places)


def _carried_out_now(op: Any, args: Any, kwargs: Any) -> Any:
    """The host waits, as it needs values, such as the number of those that are not zero."""
    number_in_locked_memory(torch.int32.itemsize)
    host_wait(current_stream().mark(), "implicit", str(op))
    found = op(*tree_of(on_host, args), **tree_of(on_host, _moved(kwargs, "cpu")))
    written = [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    if written:
        return args[0] if not written[0].is_out else kwargs[written[0].name]
    return tree_of(placed, found)


def _needs_values(name: str, tags: Any, args: Any) -> bool:
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [each for each in args[1] if each is not None]
        masks = name != "index" and any(each.dtype in (torch.bool, torch.uint8) for each in indices)
        return masks or not all(map(is_fake, indices))  # before an `index` with a mask there was a `nonzero`
    return bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(tags))


def _drawn(op: Any, args: Any, kwargs: Any) -> Any:
    """Random numbers of the CPU's generator, in the order of the calls; the device does not wait, nor does the host.

    None where they depend on no generator.
    """
    tensors = [*tensors_in((args, kwargs))]
    fakes = [x for x in tensors if is_fake(x)]
    if len(fakes) == 1 and any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments):
        if fakes[0].numel() == 0:
            _results(op, args, kwargs)
        target = fakes[0]
        scratch = torch.empty_strided(target.size(), target.stride(), dtype=target.dtype, device="cpu")
        draw = lambda x: scratch if x is target else x  # noqa: E731
        op(*tree_of(draw, args), **tree_of(draw, _moved(kwargs, "cpu")))
        current_stream().put(partial(on_host(target).copy_, scratch))
        return target
    if not fakes:
        return tree_of(placed, op(*args, **_moved(kwargs, "cpu")))
    # how many are drawn may depend on values: the emulator waits, a GPU would not
    blocked(current_stream().mark(), "random numbers")
    found = op(*tree_of(on_host, args), **tree_of(on_host, _moved(kwargs, "cpu")))
    return fakes[0] if op._schema.returns[0].alias_info else tree_of(placed, found)


def _check_devices(name: str, args: Any, kwargs: Any) -> None:
    if not name.startswith(("index", "_index")):  # host tensors may be indices
        for x in tensors_in((args, kwargs)):
            if not is_fake(x) and x.dim():
                raise RuntimeError(
                    f"{name}: expected all tensors to be on the same device, but found {NAME}:0 and {x.device}"
                )


def _moved(options: dict[str, Any], device: str) -> dict[str, Any]:
    """The same options for a device that has the kernel."""
    moved = {k: torch.device(device) if k == "device" and v is not None else v for k, v in options.items()}
    return {k: v for k, v in moved.items() if k != "pin_memory"}


def _shape(x: torch.Tensor, device: str) -> torch.Tensor:
    if not is_fake(x):
        return x
    made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)
    return made if device == "meta" else made.zero_()
