"""AQ-SGD: the change of each sample's activations since its last epoch, quantized."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.number_range import POSITIVE
from pipetrain.engine.tensors import Tensors, flat
from pipetrain.zoo.messages.base import MessageFormat, MessageTensor
from pipetrain.zoo.messages.integers import Integers
from pipetrain.zoo.messages.sample_cache import SampleCache
from pipetrain.zoo.messages.values import computed


class AqSgd(MessageFormat):
    """Sends the quantized difference of a sample's activations from what arrived the last time (Wang et al. 2022).

    Both ends keep what arrived. A sample that the cache lacks differs from zero.

    Args:
        bits, group, rounding: of the differences, as of `Integers`.
        plain_epochs: first epochs, whose activations are sent as they are.
        gigabytes: that an end may keep, in 10^9 bytes; the oldest samples go first.
        folder: of a file that has them; None: they stay on the device. With a file, the host waits for the device.
    """

    name = "aq"
    parts = 2
    keeps_state = needs_samples = mirrors = True
    not_for_gradients = (
        "gradients do not settle from epoch to epoch as activations do; messages.gradients=int4, fp8 and topk work"
    )

    def __init__(
        self,
        bits: int = 4,
        group: int = 64,
        rounding: Literal["nearest", "stochastic"] = "nearest",
        plain_epochs: int = 1,
        gigabytes: float = 1.0,
        folder: str | None = None,
    ) -> None:
        check_whole("plain_epochs", plain_epochs, least=0)
        POSITIVE.check("gigabytes", gigabytes)
        if folder is not None and not (isinstance(folder, str | Path) and Path(folder).is_dir()):
            raise ConfigError(f"folder={folder}: no such folder; make it, or null to keep the samples in memory")
        self._integers, self._plain_epochs = Integers(bits, group, rounding), plain_epochs
        self._cache = SampleCache(gigabytes * 1e9, folder)

    @override
    def form(self, epoch: int) -> bool:
        return epoch < self._plain_epochs

    def _is_plain(self, of: MessageTensor) -> bool:
        return of.epoch is not None and self.form(of.epoch)

    @override
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        if self._is_plain(of):
            return flat(tensor), tensor.new_empty(0)
        values = computed(tensor).reshape(len(tensor), -1)
        return self._integers.encoded((values - self._last(values, of)).view(-1), of)

    @override
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        if self._is_plain(of):
            flat(out).copy_(parts[0])
        else:
            change = self._integers.decoded(parts, out.numel()).view(len(out), -1)
            out.copy_((change + self._last(change, of)).view(out.shape))
        if self._knows_rows(out, of):
            for sample, row in zip(of.samples or (), out.reshape(len(out), -1), strict=True):
                self._cache.put((of.place, sample), row)

    def _knows_rows(self, tensor: Tensor, of: MessageTensor) -> bool:
        return of.samples is not None and len(of.samples) == len(tensor)

    def _last(self, like: Tensor, of: MessageTensor) -> Tensor:
        """What arrived of these samples the last time (samples, values); zeros where that is unknown."""
        last = torch.zeros_like(like)
        if self._knows_rows(like, of):
            for row, sample in zip(last, of.samples or (), strict=True):
                known = self._cache.get((of.place, sample))
                if known is not None and known.shape == row.shape:
                    row.copy_(known)
        return last

    @override
    def state(self) -> dict[str, Tensor]:
        return self._cache.state()

    @override
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._cache.load_state(state)
