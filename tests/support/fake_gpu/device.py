"""The device as torch knows it: its module, its kernels, its mixed precision."""

from __future__ import annotations

# ruff: noqa: FBT001 (functions stand for torch's, with its arguments)
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from support.fake_gpu.host_waits import NAME, rank
from support.fake_gpu.kernels import aten, lstm
from support.fake_gpu.memory import SIZE, allocated, is_fake, peak, pin, pinned, release, reset_peak, storage_clone
from support.fake_gpu.operations import RENAMED, carry_out
from support.fake_gpu.streams import Event, Stream, current_stream, device_wide_wait, entered, set_stream
from support.fake_gpu.trees import tree_of
from torch import nn
from torch._decomp import decompositions
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_libraries: list[torch.library.Library] = []


def _properties(_device: Any = None) -> SimpleNamespace:
    number = 0 if os.environ.get("PIPETRAIN_EMULATED_SHARED") else rank()
    address = {"pci_domain_id": 0, "pci_bus_id": number, "pci_device_id": 0}
    return SimpleNamespace(name="emulated GPU", uuid=f"GPU-{number:04}", total_memory=SIZE, **address)


MODULE = SimpleNamespace(
    Stream=Stream, Event=Event, stream=entered, current_stream=current_stream, set_stream=set_stream,
    default_stream=lambda _device=None: Stream.all[0], synchronize=device_wide_wait,
    get_device_properties=_properties, get_device_name=lambda _device=None: _properties().name,
    device_count=lambda: 1, current_device=lambda: 0, set_device=lambda _device: None, is_available=lambda: True,
    is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
    memory_allocated=allocated, max_memory_allocated=peak, memory_reserved=allocated, max_memory_reserved=peak,
    reset_peak_memory_stats=reset_peak, empty_cache=release,
    manual_seed_all=lambda _seed: None, manual_seed=lambda _seed: None,  # torch.manual_seed seeds the CPU's beside it
    default_generators=(torch.default_generator,), get_rng_state=lambda _device=None: torch.get_rng_state(),
    set_rng_state=lambda state, _device=None: torch.set_rng_state(state),
    get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16, torch.float32],
)  # fmt: skip
"""What torch.get_device_module gives, as of torch.cuda."""


_HALF = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bmm mm baddbmm addmm addbmm linear matmul "
    "scaled_dot_product_attention mkldnn_rnn_layer"
)
_FULL_PRECISION = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div nll_loss "
    "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss"
)
"""What autocast of the CPU has in half and in full precision, as far as models here use it."""


def _cast(op: Any, half: bool, *args: Any, **kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(NAME) if half else torch.float32
    cast = lambda x: x.to(dtype) if is_fake(x) and x.is_floating_point() and x.dtype != torch.float64 else x  # noqa: E731
    with torch.autocast(NAME, enabled=False):
        return op(*tree_of(cast, args), **tree_of(cast, kwargs))


def install() -> None:
    """Makes the device in this process; once."""
    if _libraries:
        return
    Stream()
    _setup_privateuseone_for_python_backend(NAME, backend_module=MODULE)
    _libraries.extend(torch.library.Library(*each) for each in (("_", "IMPL"), ("aten", "IMPL")))
    _libraries[0].fallback(carry_out, "PrivateUse1")
    _libraries[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # what has kernels of torch's for any device, which raise or ask for what is not there
    for name in (*RENAMED, "_to_copy", "native_dropout", "native_layer_norm"):
        _libraries[1].impl(name, partial(carry_out, getattr(aten, name).default), "PrivateUse1")
    recurrent = {
        "lstm.input": lstm,
        "lstm.data": decompositions.lstm_data_impl,
        "gru.input": decompositions.gru_impl,
        "gru.data": decompositions.gru_impl_data,
    }
    for name, function in recurrent.items():
        for key in ("AutogradPrivateUse1", "PrivateUse1"):  # the latter under inference_mode
            _libraries[1].impl(name, function, key)
    for names, half in ((_HALF, True), (_FULL_PRECISION, False)):
        for name in names.split():
            packet = getattr(aten, name)
            for overload in packet.overloads():
                if not overload.endswith("out") and "dtype" not in overload:
                    op = getattr(packet, overload)
                    _libraries[1].impl(
                        op.name().removeprefix("aten::"), partial(_cast, op, half), "AutocastPrivateUse1"
                    )
    torch.Tensor.is_pinned, torch.Tensor.pin_memory = pinned, pin  # type: ignore[method-assign, assignment]
    torch.UntypedStorage.clone = storage_clone  # type: ignore[method-assign]
    # a Parameter that is moved to CUDA stays the same object, by which layers share it; here torch would replace it
    torch.__future__.set_swap_module_params_on_conversion(True)
    nn.RNNBase._init_flat_weights = _without_weak_references(nn.RNNBase._init_flat_weights)  # type: ignore[method-assign]


def _without_weak_references(initialize: Any) -> Any:
    """Weights of several recurrent layers could not be moved while one has weak references to them."""

    def without(layer: nn.RNNBase) -> None:
        initialize(layer)
        layer._flat_weight_refs = [None] * len(layer._flat_weight_refs)

    return without
