"""What a profile depends on, and so what it is remembered by."""

import hashlib
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from pipetrain.config.instantiate import Target
from pipetrain.config.settings import Settings
from pipetrain.models.chain import LayerChain
from pipetrain.run.layer_times import Measuring, Minibatch
from pipetrain.run.provenance import machine


def profile_key(settings: Settings, chain: LayerChain, minibatch: Minibatch, how: Measuring) -> dict[str, Any]:
    """All that the measurements of a model depend on: its code, options and shapes, and how and where it computes."""
    inputs, targets = minibatch
    return {
        "model": _of_target(settings.model.target),
        "built": settings.model.build_options,
        "layers": [
            [label, [[name, shape_of(weight)] for name, weight in layer.named_parameters()]]
            for label, layer in zip(chain.labels, chain.layers, strict=True)
        ],
        "shared_weights": list(chain.shared_weights().items()),
        "loss": _of_target(settings.loss),
        "dataset": _of_target(settings.dataset.target),
        "workers": settings.dataset.workers,
        "inputs": [shape_of(tensor) for tensor in inputs],
        "targets": [shape_of(tensor) for tensor in targets],
        **computation(how),
    }


def computation(how: Measuring) -> dict[str, Any]:
    """How and where a model computes."""
    return {
        "microbatches": how.num_microbatches,
        "precision": how.arithmetic.precision,
        "channels_last": how.arithmetic.channels_last,
        "compile": how.arithmetic.compiled,
        "device": how.device.type,
        "threads": how.threads,
        "repeats": how.repeats,
        **machine(how.device.type),
    }


def shape_of(tensor: Tensor) -> str:
    """The shape and type of a tensor, such as `64x3x32x32 float32`."""
    return f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _of_target(target: Target) -> dict[str, Any]:
    """A target, its options, and the code of the file that it is in, which a user may change."""
    return {"target": target.path, "options": target.options, "code": _code_of(target.path)}


def _code_of(path: str) -> str | None:
    """The hash of the file of the innermost module on a path; None where there is none."""
    names = path.split(".")
    modules = (sys.modules.get(".".join(names[:count])) for count in range(len(names), 0, -1))
    file = next((module.__file__ for module in modules if module is not None), None)
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
