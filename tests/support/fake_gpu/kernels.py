"""Operations of which torch has no kernel for any device, or one that would need C++."""

from __future__ import annotations

# ruff: noqa: FBT001, FBT002 (functions stand for torch's, with its arguments)
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.fake_gpu.host_waits import GARBAGE, host_wait
from support.fake_gpu.memory import (
    block_of,
    copied_in,
    fresh_storage,
    is_fake,
    mark_pinned,
    number_in_locked_memory,
    on_host,
    pinned,
)
from support.fake_gpu.streams import current_stream
from torch._decomp import decompositions

aten = torch.ops.aten
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def placed(x: torch.Tensor) -> torch.Tensor:
    """The same values in memory of the device, from where the host has them: kernels make such, no copies."""
    place = fresh(x.size(), x.stride(), x.dtype)
    current_stream().put(partial(on_host(place).copy_, x))
    return place


def fresh(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of garbage."""
    x = torch._C._acc.create_empty_tensor([0], dtype)
    if not all(size):
        return aten.as_strided.default.redispatch(CPU, x, size, stride, 0)
    storage = fresh_storage((1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) * dtype.itemsize)
    return aten.set_.source_Storage_storage_offset.redispatch(CPU, x, storage, 0, size, stride)


def resized(x: torch.Tensor, size: Any, stride: Any = None, *, memory_format: Any = None) -> torch.Tensor:
    shape = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    made = fresh(size, stride or shape.stride(), x.dtype)
    if x.numel() and made.numel():
        kept = min(block_of(x).bytes.nbytes, block_of(made).bytes.nbytes)
        current_stream().put(partial(block_of(made).bytes[:kept].copy_, block_of(x).bytes[:kept]))
    return aten.set_.source_Storage_storage_offset.redispatch(CPU, x, made.untyped_storage(), 0, size, made.stride())


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    to_device, from_device = is_fake(target), is_fake(source)
    other = source if to_device else target
    there, here = on_host(target if to_device else target.data), on_host(source)
    late = non_blocking and pinned(other)
    if late and not to_device and target.is_contiguous():
        target.data.reshape(-1).view(torch.uint8).fill_(GARBAGE)  # until the device gets there
    end = current_stream().put(partial(there.copy_, here))
    if late:
        copied_in(other, current_stream())
    if not (to_device and from_device) and not late:
        host_wait(end, "pageable" if non_blocking and to_device else "implicit", "a copy between host and device")
    return target


def _to_copy(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """`to`; torch's own asks for page-locked memory in C++ if the copy is not to block."""
    device = options.get("device")
    if device is None or torch.device(device).type != "cpu" or not options.get("non_blocking"):
        return aten._to_copy.default.redispatch(CPU, x, **options)
    dtype = options.get("dtype") or x.dtype
    return _copy(mark_pinned(torch.empty_like(x, device="cpu", dtype=dtype)), x, non_blocking=True)


def _item(x: torch.Tensor) -> Any:
    number_in_locked_memory(x.element_size())
    host_wait(current_stream().mark(), "implicit", "item")
    return on_host(x).item()


def _record_stream(x: torch.Tensor, stream: torch.Stream) -> None:
    if x.numel():
        block_of(x).lent_to.add(stream.stream_id)


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The CPU's, bit for bit, which has no kernel of this kind."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    noise = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="cpu").bernoulli_(1 - p)
    kept = placed(noise.bool())
    y = fresh(x.size(), x.stride(), x.dtype)
    there, here = on_host(y), on_host(x)
    current_stream().put(lambda: there.copy_(here * noise.div_(1 - p)))
    return y, kept


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return gradient * mask.to(gradient.dtype).div_(1 / scale if scale else 1)


def lstm(
    x: torch.Tensor, hidden: list[torch.Tensor], params: list[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Made of the kernels that the CPU's is made of, as torch picks them for no other device."""

    def layer(x: torch.Tensor, state: Any, own: list[torch.Tensor], has_biases: bool, reverse: bool = False) -> Any:
        biases = own[2:4] if has_biases else [own[0].new_zeros(len(own[0])) for _ in range(2)]
        states = [each.unsqueeze(0).contiguous() for each in state]
        options = (reverse, [], 2, states[0].shape[2], 1, has_biases, False, False, train)  # 2: of an LSTM
        y, *states, _ = aten.mkldnn_rnn_layer.default(x.contiguous(), *own[:2], *biases, *states, *options)
        return y, tuple(each.squeeze(0) for each in states)

    projected = hidden[0].shape[2] != hidden[1].shape[2]
    fast = torch._C._get_mkldnn_enabled() and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    y, states = decompositions._rnn_helper(
        x, [*zip(*hidden, strict=True)], decompositions.gather_params(params, has_biases, projected), has_biases,
        num_layers, dropout, train, bidirectional, batch_first,
        layer if fast and not projected else decompositions.one_layer_lstm,
    )  # fmt: skip
    return y, *(torch.stack(each) for each in zip(*states, strict=True))


OWN_KERNELS: dict[str, Callable[..., Any]] = {
    "copy_": _copy,
    "_copy_from": lambda source, target, non_blocking=False: _copy(target, source, non_blocking),
    "_to_copy": _to_copy,
    "resize_": resized,
    "record_stream": _record_stream,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "_fused_sdp_choice": lambda *_args, **_options: 0,  # attention by the operations that it is made of
    "_local_scalar_dense": _item,
}
