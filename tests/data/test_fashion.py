from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from pipetrain.data.fashion import MEAN, STD, fashion_mnist_mini
from pipetrain.data.loader import Loader

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


@pytest.fixture(scope="module")
def images():
    return fashion_mnist_mini()


def test_fashion_mnist_mini_has_its_published_shape_and_balance(images):
    assert (images.channels, images.classes, images.size) == (1, 10, (28, 28))
    assert (len(images.train), len(images.eval)) == (6000, 2000)
    image, target = images.train[0]
    assert (image.shape, image.dtype) == ((1, 28, 28), torch.float32)
    assert (target.shape, target.dtype) == ((), torch.int64)
    assert images.train.targets.bincount().tolist() == [600] * 10
    assert images.eval.targets.bincount().tolist() == [200] * 10


def test_fashion_mnist_constants_are_near_those_of_the_bundled_subset(images):
    values = images.train.images.float() / 255
    assert values.mean().item() == pytest.approx(MEAN[0], abs=0.003)
    assert values.std().item() == pytest.approx(STD[0], abs=0.003)


def test_fashion_mnist_mini_is_the_published_subset(images):
    path = SHARED / "data" / "fashion_mnist_subset.npz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with np.load(path) as published:
        assert np.array_equal(published["train_images"], images.train.images[:, 0].numpy())
        assert np.array_equal(published["test_labels"], images.eval.targets.numpy())


def test_license_of_fashion_mnist_is_bundled():
    text = (resources.files("pipetrain.data") / "fashion_mnist_mini.LICENSE").read_text(encoding="utf-8")
    assert "Zalando SE" in text
    assert "The MIT License" in text


def test_augmentation_applies_to_training_alone_and_is_keyed_by_sample(images):
    augmented = fashion_mnist_mini(augment=True)
    assert torch.equal(augmented.eval[7][0], images.eval[7][0])
    first, again, later = (
        torch.cat([inputs for (inputs,) in Loader(augmented.train, batch_size=size, limit=64, shuffle=False).inputs(e)])
        for size, e in ((64, 0), (7, 0), (64, 1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_fashion_mnist_mini_loads_without_torchvision():
    """In a fresh interpreter: others of these tests import it."""
    import subprocess
    import sys

    code = "import sys; from pipetrain.data.fashion import fashion_mnist_mini as f; f(augment=True).train[0]; "
    subprocess.run([sys.executable, "-c", code + "assert 'torchvision' not in sys.modules"], check=True)
