"""The fingerprint of a split: how many samples it has, and what a few of them hold, so that two readers can compare."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipetrain.data.fetch import Fetch, form_of
from pipetrain.data.loader import Loader
from pipetrain.engine.arithmetic import torch_threads

Fingerprint = Mapping[str, Any]
"""In values of JSON: `samples`, their number, and `read`: index -> what the input and the target hold.

Each of the two is [form and hash, sketch], `CHANGES`, or None if it is unknown.
"""
CHANGES = "changes"
"""Marks a value that changes between two readings in one process, such as an input with unseeded noise."""

_SIDES = ("input", "target")
_SECONDS = 0.25
"""Time after which no further sample is read."""
_ROUNDING = 0.02
"""Difference of two sketches, by their scale, that decoders and kernels of other machines may make."""
_PIXELS = 64
"""Bytes of an image; fewer are labels or characters."""
_POINTS = 4096
_WAVES = 3


def fingerprint(loader: Loader, indices: Iterable[int], *, repeats: bool = True) -> Fingerprint:
    """The fingerprint of what a loader reads.

    Args:
        loader: of the split.
        indices: of the samples to read, in epoch 0; indices past the end are skipped.
        repeats: True to read each twice, which finds what changes.
    """
    fetch = Fetch(loader.dataset, loader.seed, inputs=True, targets=True)
    read: dict[str, list[Any]] = {}
    began = time.monotonic()
    for index in indices:
        if index >= loader.samples_per_epoch or time.monotonic() - began > _SECONDS:
            break
        try:
            with torch_threads(1):
                first = [*map(_described, fetch.pair(0, index))]
                again = [*map(_described, fetch.pair(0, index))] if repeats else first
        except Exception:  # it is reported when it is read to train with it, if ever
            continue
        read[str(index)] = [one if one == two else CHANGES for one, two in zip(first, again, strict=True)]
    return {"samples": loader.samples_per_epoch, "read": read}


def fingerprint_like(other: Fingerprint, loader: Loader, *, repeats: bool = True) -> Fingerprint:
    """The fingerprint of what a loader reads, of the samples that another one has."""
    return fingerprint(loader, sorted(map(int, other["read"])), repeats=repeats)


def difference(one: Fingerprint, other: Fingerprint) -> tuple[str, str, str] | None:
    """The first thing in which two differ, such as `the target of sample 3`, and both values; None if they agree."""
    if one["samples"] != other["samples"]:
        return "the number of samples", str(one["samples"]), str(other["samples"])
    for index, found in one["read"].items():
        for side, part, counterpart in zip(_SIDES, found, other["read"].get(index, (None, None)), strict=True):
            if isinstance(part, list) and isinstance(counterpart, list) and not _agree(part, counterpart):
                return f"the {side} of sample {index}", _shown(part), _shown(counterpart)
    return None


def unreliable_sample(found: Fingerprint) -> str | None:
    """Index of the first sample whose input and target change from reading to reading, or None."""
    return next((index for index, parts in found["read"].items() if parts == [CHANGES, CHANGES]), None)


class _UnknownTypeError(Exception):
    """A value is neither a number, text, array or image, nor made of these."""


def _described(value: Any) -> list[Any] | None:
    """Form and hash of what has to be equal in a value, and the sketch of what may be rounded."""
    exact, sketch = hashlib.sha256(), list[float]()
    try:
        _take(value, exact, sketch)
    except _UnknownTypeError:
        return None
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0 and not sketch:
        value = value.item()
    return [str(value) if isinstance(value, int) else f"{form_of(value)} #{exact.hexdigest()[:8]}", sketch]


def _take(value: Any, exact: Any, sketch: list[float]) -> None:
    if isinstance(value, Mapping):
        value = [*value.items()]
    if isinstance(value, tuple | list):
        exact.update(f"{len(value)}(".encode())
        for part in value:
            _take(part, exact, sketch)
    elif isinstance(value, str | bytes | int | None):
        exact.update(repr(value).encode())
    else:
        array = _array(value)
        exact.update(f"{array.dtype.kind} {array.shape}".encode())
        if array.dtype.kind in "fc" or (array.dtype == np.uint8 and array.size > _PIXELS):
            sketch += _sketch(array)
        elif array.dtype.kind in "biuSU":
            exact.update(array.astype(np.int64).tobytes() if array.dtype.kind in "biu" else array.tobytes())
        else:
            raise _UnknownTypeError


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A number, a tensor, an array or an image of pillow's as an array."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise _UnknownTypeError
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    elif not isinstance(value, float | np.ndarray | np.generic) and not hasattr(value, "__array_interface__"):
        raise _UnknownTypeError
    return np.asarray(value)


def _sketch(array: np.ndarray[Any, Any]) -> list[float]:
    """A few sums over up to `_POINTS` of the numbers: the root of their mean square, and their share in some waves."""
    flat = array.reshape(-1)
    flat = flat[:: 1 + flat.size // _POINTS]
    flat = np.nan_to_num((flat.real + 0.5 * flat.imag if flat.dtype.kind == "c" else flat).astype(np.float64))
    if not flat.size:
        return []
    sums = [np.sqrt(np.mean(flat**2)), *(_waves()[:, : flat.size] @ flat * np.sqrt(2 / flat.size))]
    return [float(f"{each:.5g}") for each in sums]


@cache
def _waves() -> np.ndarray[Any, Any]:
    """Rows of numbers between -1 and 1 that no data resembles, the same everywhere."""
    return np.cos(np.outer(np.sqrt([2.0, 3.0, 5.0]), np.arange(1, _POINTS + 1) ** 1.5))


def _agree(one: list[Any], other: list[Any]) -> bool:
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    sketches = np.array([one[1], other[1]]).reshape(2, -1, 1 + _WAVES)
    scale = np.abs(sketches[:, :, :1]).max(axis=0)
    return bool((np.abs(sketches[0] - sketches[1]) <= _ROUNDING * scale).all())


def _shown(part: list[Any]) -> str:
    text, sketch = part
    if not sketch:
        return str(text)
    digest = hashlib.sha256(f"{text} {sketch}".encode()).hexdigest()
    return f"{text.partition(' #')[0]} #{digest[:8]}"
