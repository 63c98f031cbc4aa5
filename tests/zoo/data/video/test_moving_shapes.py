"""Synthetic videos of moving shapes."""

import pytest
import torch

from pipetrain.zoo.data.video.moving_shapes import MovingShapes, synthetic_moving_shapes


def test_video_is_made_of_its_index_alone_and_splits_differ():
    first, again = (synthetic_moving_shapes(train=4, eval=4) for _ in range(2))
    assert torch.equal(first.train.videos.frames(2), again.train.videos.frames(2))
    assert not torch.equal(first.train.videos.frames(2), first.eval.videos.frames(2))
    assert first.features == 3 * 12 * 12


@pytest.mark.parametrize(
    ("direction", "axis", "sign"), [("left", 1, -1), ("right", 1, 1), ("up", 0, -1), ("down", 0, 1)]
)
def test_shape_moves_as_the_caption_says(direction, axis, sign):
    videos = MovingShapes(60, frames=8, side=12, seed=(0, 0))
    index = next(i for i in range(60) if f"moves {direction}" in videos.captions(i)[0])
    brightness = videos.frames(index).view(8, 3, 12, 12).clamp(min=0).sum(1)
    centers = [(frame.sum(1 - axis) * torch.arange(12)).sum() / frame.sum() for frame in brightness]
    assert (centers[-1] - centers[0]) * sign > 1


def test_color_is_that_of_the_caption():
    videos = MovingShapes(60, frames=2, side=12, seed=(0, 0))
    index = next(i for i in range(60) if "green" in videos.captions(i)[0])
    red, green, blue = videos.frames(index).view(2, 3, -1).sum((0, 2))
    assert green > 5 * max(abs(red), abs(blue))
