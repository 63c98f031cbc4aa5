"""Costs of formats of messages, measured on tensors of the sizes that cross the cuts."""

import copy
import sys
import time
from functools import cache

import torch

from pipetrain.engine.arithmetic import ComputeOptions, torch_threads
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.message_costs import DirectionCosts, MessageCosts
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.messages import build_messages
from pipetrain.zoo.messages import Direction, MessageFormat, Messages, MessageTensor

_REPEATS = 5


def message_costs(settings: Settings, cut: CutProfile) -> MessageCosts | None:
    """Costs of the messages of a run, on this machine's CPU, with the threads of the profile; None if they are plain.

    Each message counts as one tensor (samples of a microbatch, values of a sample) of normal numbers. Links
    between stages of one process stay plain.
    """
    if not isinstance(messages := build_messages(settings, {}), Messages):
        return None
    samples = max(1, settings.train.batch_size // settings.train.microbatches)
    dtype = ComputeOptions(settings.train.precision).dtype
    sizes = cut.sent_bytes
    place, found = cut.placement, dict[Direction, DirectionCosts]()
    local = [place is not None and not place.crosses(r) for r in range(len(sizes))]
    values = [max(1, size // dtype.itemsize // settings.train.batch_size) for size in sizes]
    plain = DirectionCosts.plain(len(sizes))
    with torch_threads(cut.profile.threads):
        for direction, form in messages.formats().items() if sizes else ():
            each = [
                (1.0, 0.0, 0.0) if inside or not size else _measured(form, samples, count, dtype)
                for size, count, inside in zip(sizes, values, local, strict=True)
            ]
            found[direction] = DirectionCosts(*map(list, zip(*each, strict=True)))
    return MessageCosts(*(found.get(direction, plain) for direction in Direction))


@cache
def _measured(form: MessageFormat, samples: int, values: int, dtype: torch.dtype) -> tuple[float, float, float]:
    """Share of the plain bytes, and the seconds of encoding and of decoding."""
    tensor = torch.randn(samples, values, generator=torch.Generator().manual_seed(0)).to(dtype)
    of, ends = MessageTensor((0, 0, 0, 0, 0, 0), sys.maxsize, range(samples)), [copy.deepcopy(form) for _ in range(2)]
    encode_s, decode_s = [], []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        parts = ends[0].encode(tensor, of)
        if form.mirrors:
            ends[0].decode(parts, torch.empty_like(tensor), of)
        encoded = time.perf_counter()
        ends[1].decode(parts, torch.empty_like(tensor), of)
        encode_s.append(encoded - began)
        decode_s.append(time.perf_counter() - encoded)
    return sum(part.nbytes for part in parts) / tensor.nbytes, min(encode_s), min(decode_s)
