"""Synthetic videos of moving shapes, with captions; made when they are read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipetrain.engine.errors import check_whole
from pipetrain.engine.seeding import key
from pipetrain.zoo.data.video.captions import CaptionDataset

_COLORS = {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0), "yellow": (1.0, 1.0, 0.0)}
_DIRECTIONS = {"left": (0.0, -1.0), "right": (0.0, 1.0), "up": (-1.0, 0.0), "down": (1.0, 0.0)}
_SHAPES = ("square", "diamond", "cross", "ring")
_REACH = {"slowly": 0.2, "quickly": 0.4}
"""Distance that a shape covers from the middle, as a share of the side."""
_FORMS = (
    "a {color} {shape} moves {direction} {speed}",
    "the {color} {shape} is {speed} moving {direction}",
    "a {shape} that is {color} goes {direction}",
)
_NOISE = 0.1
_LONGEST = 8
_TRAIN, _EVAL = range(2)


class MovingShapes:
    """Videos of a shape that moves from the middle of a black square; each made from (seed, split, index) alone."""

    def __init__(self, count: int, frames: int, side: int, seed: tuple[int, ...]) -> None:
        self._count = count
        self._frames = frames
        self._side = side
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def captions(self, index: int) -> Sequence[str]:
        """Three captions of what is seen."""
        color, shape, direction, speed = self._choices(self._generator(index))
        return [each.format(color=color, shape=shape, direction=direction, speed=speed) for each in _FORMS]

    def frames(self, index: int) -> Tensor:
        """The pixels of each frame (frames, 3 · side · side), float32."""
        generator = self._generator(index)
        color, shape, direction, speed = self._choices(generator)
        start = (self._side - 1) / 2 + torch.rand(2, generator=generator) * 2 - 1
        way = torch.linspace(0, self._side * _REACH[speed], self._frames)
        centers = start + way[:, None] * torch.tensor(_DIRECTIONS[direction])
        picture = torch.tensor(_COLORS[color])[None, :, None, None] * self._mask_of(shape, centers)[:, None]
        noise = torch.randn(picture.shape, generator=generator) * _NOISE
        return (picture + noise).flatten(1)

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(key(*self._seed, index))

    @staticmethod
    def _choices(generator: torch.Generator) -> tuple[str, ...]:
        options = (tuple(_COLORS), _SHAPES, tuple(_DIRECTIONS), tuple(_REACH))
        return tuple(each[int(torch.randint(len(each), (), generator=generator))] for each in options)

    def _mask_of(self, shape: str, centers: Tensor) -> Tensor:
        """Pixels that a shape covers at each of its centers: (frames, side, side), 0 or 1."""
        pixels = torch.arange(self._side)
        down = (pixels[None, :, None] - centers[:, 0, None, None]).abs()
        across = (pixels[None, None, :] - centers[:, 1, None, None]).abs()
        larger, smaller, radius = torch.maximum(down, across), torch.minimum(down, across), self._side / 5
        covered = {
            "square": larger <= radius,
            "diamond": down + across <= radius,
            "cross": (larger <= radius) & (smaller < 1),
            "ring": (larger <= radius) & (larger > radius - 1),
        }
        return covered[shape].float()


def synthetic_moving_shapes(
    train: int = 1000, eval: int = 100, frames: int = 8, size: int = 12, seed: int = 0
) -> CaptionDataset:
    """Videos of a moving shape on a square of `size` pixels a side, each with three captions; nothing is stored.

    The seed is the data set's own, so that runs of different seeds see the same videos.

    Raises:
        ConfigError: a number is too small.
    """
    for name, count, least in (("train", train, 1), ("eval", eval, 1), ("frames", frames, 2), ("size", size, 8)):
        check_whole(f"dataset.{name}", count, least=least)
    return CaptionDataset(
        MovingShapes(train, frames, size, (seed, _TRAIN)),
        MovingShapes(eval, frames, size, (seed, _EVAL)),
        longest=_LONGEST,
    )
