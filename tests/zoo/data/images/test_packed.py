"""Packed images, and those that are bundled so."""

import hashlib

import numpy as np
import pytest

from pipetrain.zoo.data.images.mnist_cifar import fashion_mnist_mini
from pipetrain.zoo.data.images.packed import pack, unpack


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (20, 28, 28)])
def test_images_are_unpacked_as_they_were(shape):
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    across = np.broadcast_to(np.arange(shape[2], dtype=np.uint8) * 17, shape)
    down = np.broadcast_to((np.arange(shape[1], dtype=np.uint8) * 29)[:, None], shape)
    for images in (noise, across, down, np.concatenate([noise, down, across])):
        assert np.array_equal(unpack(pack(images), *shape[1:]), images)


def test_bundled_images_and_labels_are_those_of_the_data_set():
    data = fashion_mnist_mini()
    hashes = [
        hashlib.sha256(array.numpy().tobytes()).hexdigest()[:16]
        for split in (data.train, data.eval)
        for array in (split.images, split.targets.to(split.images.dtype))
    ]
    assert hashes == ["2b17438af55637db", "f16e201ddc15b401", "96315b1732ab731e", "b2095bc797d1201e"]
