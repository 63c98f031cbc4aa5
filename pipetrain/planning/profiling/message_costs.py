"""Costs of formats of messages, measured on tensors of the sizes that cuts send."""

import copy
import sys
import time
from collections.abc import Collection
from dataclasses import replace

import torch

from pipetrain.engine.arithmetic import ComputeOptions, torch_threads
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described, in_own_words, place_of
from pipetrain.planning.profile.profile import Message, Profile, ProfiledLayer
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.messages import build_messages
from pipetrain.zoo.messages import Direction, MessageFormat, Messages, MessageTensor
from pipetrain.zoo.messages.ends import End

_REPEATS = 5
_measured: dict[object, tuple[float, float, float]] = {}
"""What this process has measured, by what it depends on, so that a search and a prediction count the same."""


def with_messages(profile: Profile, settings: Settings, sources: Collection[int] | None = None) -> Profile:
    """The profile with the messages that layers send in the formats of a run; the same profile if they are plain.

    Each size is measured once, on this machine's CPU, with the threads of the profile. What a layer sends counts as
    one tensor (samples of a microbatch, values of a sample) of normal numbers.

    Args:
        profile: of the model.
        settings: of the run.
        sources: the layers behind which something is cut; None: all that others need.

    Raises:
        ConfigError: a format of the user's own fails, or returns something else than it should.
    """
    if not isinstance(messages := build_messages(settings, {}), Messages):
        return profile
    if sources is None:
        sources = {source for source, _ in profile.edges}
    train, formats = settings.train, messages.formats()
    samples, dtype = max(1, train.batch_size // train.microbatches), ComputeOptions(train.precision).dtype

    def message(direction: Direction, size: int) -> Message | None:
        if direction not in formats or not size:
            return None
        values, target = max(1, size // dtype.itemsize // train.batch_size), settings.messages.targets[direction]
        key = repr((target, direction, samples, values, dtype, profile.threads))
        if key not in _measured:
            tensor = torch.randn(samples, values, generator=torch.Generator().manual_seed(0)).to(dtype)
            try:
                _measured[key] = _measure(direction, formats[direction], tensor)
            except Exception as error:
                if place_of(error) is None and not in_own_words(error):
                    raise
                given = f"{target.setting}: for a tensor of {dtype} and shape {tuple(tensor.shape)}"
                raise ConfigError(f"{given}: {described(error)}") from error
        share, encode_s, decode_s = _measured[key]
        return Message(share * size, train.microbatches * encode_s, train.microbatches * decode_s)

    def sending(layer: ProfiledLayer) -> ProfiledLayer:
        output, gradient = (message(direction, layer.output_bytes) for direction in Direction)
        return replace(layer, encoded_output=output, encoded_gradient=gradient)

    with torch_threads(profile.threads):
        layers = tuple(sending(layer) if i in sources else layer for i, layer in enumerate(profile.layers))
    return replace(profile, layers=layers)


def _measure(direction: Direction, form: MessageFormat, tensor: torch.Tensor) -> tuple[float, float, float]:
    """Share of the plain bytes, and the seconds of encoding and of decoding."""
    of = MessageTensor((0, 0, 0, 0, 0), sys.maxsize, range(len(tensor)))
    sender, receiver = (End(direction, 0, copy.deepcopy(form), sends=sends) for sends in (True, False))
    encode_s, decode_s = [], []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        parts = tuple(sender.encode((tensor,), of))
        encoded = time.perf_counter()
        tuple(receiver.decode(parts, of))
        encode_s.append(encoded - began)
        decode_s.append(time.perf_counter() - encoded)
    return sum(part.nbytes for part in parts) / tensor.nbytes, min(encode_s), min(decode_s)
