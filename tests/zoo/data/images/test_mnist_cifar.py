import gzip
import hashlib
import os
import struct
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cifar_files import cifar_batch, write_cifar10, write_pickle
from support.processes import python
from support.refusals import assert_refused

from pipetrain.data.loader import Loader
from pipetrain.zoo.data.images import mnist_cifar
from pipetrain.zoo.data.images.mnist_cifar import FASHION_MEAN, FASHION_STD, fashion_mnist_mini


def write_idx(path, values):
    """The format of yann.lecun.com/exdb/mnist: magic number (type 8 = unsigned byte, dimensions), sizes, bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def write_mnist(root, name):
    random = np.random.default_rng(0)
    held = {}
    for split, samples in (("train", 12), ("t10k", 5)):
        images, labels = random.integers(256, size=(samples, 28, 28)), np.arange(samples) % 10
        write_idx(root / name / "raw" / f"{split}-images-idx3-ubyte", images)
        write_idx(root / name / "raw" / f"{split}-labels-idx1-ubyte", labels)
        held[split] = images, labels
    return held


@pytest.fixture
def cifar10_files(tmp_path, monkeypatch):
    return tmp_path, write_cifar10(tmp_path, monkeypatch)


@pytest.fixture
def cifar100_files(tmp_path, monkeypatch):
    from pipetrain.zoo.torchvision_shim import datasets

    folder = tmp_path / "cifar-100-python"
    train = cifar_batch(4, fine_labels=[99, 0, 1, 2], coarse_labels=[1, 2, 3, 4])
    test = cifar_batch(2, fine_labels=[5, 50], coarse_labels=[0, 0])
    monkeypatch.setattr(datasets.CIFAR100, "train_list", [["train", write_pickle(folder / "train", train)]])
    monkeypatch.setattr(datasets.CIFAR100, "test_list", [["test", write_pickle(folder / "test", test)]])
    meta = write_pickle(folder / "meta", {"fine_label_names": [str(i) for i in range(100)]})
    monkeypatch.setattr(datasets.CIFAR100, "meta", {**datasets.CIFAR100.meta, "md5": meta})
    return tmp_path, train


@pytest.mark.parametrize(
    ("build", "name", "mean", "std"),
    [(mnist_cifar.mnist, "MNIST", 0.1307, 0.3081), (mnist_cifar.fashion_mnist, "FashionMNIST", 0.2860, 0.3530)],
)
def test_mnist_and_its_relatives_are_read_from_their_files(tmp_path, build, name, mean, std):
    held = write_mnist(tmp_path, name)
    read = build(root=str(tmp_path))
    assert (read.channels, read.classes, read.size) == (1, 10, (28, 28))
    assert (len(read.train), len(read.eval)) == (12, 5)
    image, target = read.train[11]
    expected = (torch.tensor(held["train"][0][11], dtype=torch.float32) / 255 - mean) / std
    torch.testing.assert_close(image[0], expected)
    assert (target.item(), target.dtype, read.eval.target(4).item()) == (1, torch.int64, 4)


def test_mnist_augmentation_crops_and_never_mirrors(tmp_path):
    write_mnist(tmp_path, "MNIST")
    augmented = mnist_cifar.mnist(root=str(tmp_path), augment=True)
    assert not augmented.train.augment.flip
    assert augmented.eval.augment is None


def test_cifar10_is_read_from_its_files(cifar10_files):
    root, batches = cifar10_files
    read = mnist_cifar.cifar10(root=str(root))
    assert (read.channels, read.classes, read.size) == (3, 10, (32, 32))
    assert (len(read.train), len(read.eval)) == (2 + 3 + 4 + 5 + 6, 3)
    assert read.eval.targets.tolist() == [9, 8, 7]
    red, green, blue = batches["data_batch_2"]["data"][0].reshape(3, 32, 32)
    assert torch.equal(read.train.images[2], torch.from_numpy(np.stack((red, green, blue))))
    assert read.train[2][0][1, 4, 5].item() == pytest.approx((green[4, 5] / 255 - 0.4822) / 0.2435, abs=1e-5)
    assert mnist_cifar.cifar10(root=str(root), augment=True).train.augment.flip


def test_cifar100_has_the_fine_labels(cifar100_files):
    root, batch = cifar100_files
    read = mnist_cifar.cifar100(root=str(root))
    assert (read.channels, read.classes, read.size) == (3, 100, (32, 32))
    assert read.train.targets.tolist() == batch["fine_labels"]
    ((inputs,),) = Loader(read.train, batch_size=4).inputs(0)
    assert inputs.shape == (4, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "folder", "file"),
    [
        ("mnist", "MNIST/raw", "t10k-images-idx3-ubyte"),
        ("fashion_mnist", "FashionMNIST/raw", "train-labels-idx1-ubyte"),
        ("cifar10", "cifar-10-batches-py", "data_batch_1"),
        ("cifar100", "cifar-100-python", "meta"),
    ],
)
def test_missing_files_are_named_with_the_remedy(tmp_path, monkeypatch, name, folder, file):
    monkeypatch.chdir(tmp_path)
    named = f"dataset.root=here: no .*{file}.* in {tmp_path}/here/{folder}; .*dataset.download=true"
    assert_refused(named, partial(getattr(mnist_cifar, name), root="here"))
    assert not (tmp_path / "here").exists()


def piped(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("cifar-10-batches-py/data_batch_4", Path.unlink, r"no data_batch_4 in /.*cifar-10-batches-py"),
        ("cifar-10-batches-py/test_batch", lambda path: path.write_bytes(b"no pickle"), "is damaged"),
        ("MNIST/raw/train-labels-idx1-ubyte", piped, "train-labels-idx1-ubyte is not a regular file"),
        ("MNIST/raw/train-images-idx3-ubyte", lambda path: path.write_bytes(b""), "MNIST/raw is damaged"),
        ("MNIST/raw/t10k-labels-idx1-ubyte", lambda path: write_idx(path, np.arange(6)), "5 images with 6 labels"),
    ],
)
def test_file_that_is_missing_or_wrong_is_named(cifar10_files, file, damage, message):
    root, _ = cifar10_files
    write_mnist(root, "MNIST")
    damage(root / file)
    read = mnist_cifar.mnist if file.startswith("MNIST") else mnist_cifar.cifar10
    assert_refused(message, partial(read, root=str(root)))


def test_download_unpacks_packed_files(tmp_path, monkeypatch):
    """The .gz files as published, already there: torchvision checks and unpacks them without a network."""
    from pipetrain.zoo.torchvision_shim import datasets

    write_mnist(tmp_path, "MNIST")
    sums = []
    for path in sorted((tmp_path / "MNIST" / "raw").iterdir()):
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        sums.append((packed.name, hashlib.md5(packed.read_bytes()).hexdigest()))
    monkeypatch.setattr(datasets.MNIST, "resources", sums)
    assert_refused("dataset.download=true", partial(mnist_cifar.mnist, root=str(tmp_path)))
    assert len(mnist_cifar.mnist(root=str(tmp_path), download=True).train) == 12


def test_download_that_fails_is_reported(tmp_path, monkeypatch):
    from pipetrain.zoo.torchvision_shim import datasets

    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    (tmp_path / "file").write_text("")
    for root, named in (("here", "dataset.download=true: MNIST .*: Error"), ("file", "dataset.root=.*cannot write to")):
        assert_refused(named, partial(mnist_cifar.mnist, root=str(tmp_path / root), download=True))


SHARED = Path(__file__).resolve().parents[4].parent / "shared"


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


def test_fashion_mnist_constants_match_bundled_subset(images):
    values = images.train.images.float() / 255
    assert values.mean().item() == pytest.approx(FASHION_MEAN[0], abs=0.003)
    assert values.std().item() == pytest.approx(FASHION_STD[0], abs=0.003)


def test_bundled_images_and_labels_are_those_of_the_data_set():
    data = fashion_mnist_mini()
    hashes = [
        hashlib.sha256(array.numpy().tobytes()).hexdigest()[:16]
        for split in (data.train, data.eval)
        for array in (split.images, split.targets.to(split.images.dtype))
    ]
    assert hashes == ["2b17438af55637db", "f16e201ddc15b401", "96315b1732ab731e", "b2095bc797d1201e"]


def test_fashion_mnist_mini_is_the_published_subset(images):
    path = SHARED / "data" / "fashion_mnist_subset.npz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with np.load(path) as published:
        assert np.array_equal(published["train_images"], images.train.images[:, 0].numpy())
        assert np.array_equal(published["test_labels"], images.eval.targets.numpy())


def test_license_of_fashion_mnist_is_bundled():
    text = (resources.files("pipetrain.zoo.data.images") / "fashion_mnist_mini.LICENSE").read_text(encoding="utf-8")
    assert "Zalando SE" in text
    assert "The MIT License" in text


def test_augmentation_is_for_training_only_and_keyed_by_sample(images):
    augmented = fashion_mnist_mini(augment=True)
    assert torch.equal(augmented.eval[7][0], images.eval[7][0])
    first, again, later = (
        torch.cat([inputs for (inputs,) in Loader(augmented.train, batch_size=size, limit=64, shuffle=False).inputs(e)])
        for size, e in ((64, 0), (7, 0), (64, 1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.slow
def test_fashion_mnist_mini_loads_without_torchvision():
    code = """import sys
from pipetrain.zoo.data.images.mnist_cifar import fashion_mnist_mini
fashion_mnist_mini(augment=True).train[0]
assert 'torchvision' not in sys.modules"""
    done = python(code)  # in this process, other tests import it
    assert done.returncode == 0, done.stderr
