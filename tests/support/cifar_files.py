"""CIFAR's files in small, in the layout that their authors publish."""

import hashlib
import pickle

import numpy as np


def write_pickle(path, entry):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(entry, protocol=2))
    return hashlib.md5(path.read_bytes()).hexdigest()


def cifar_batch(samples, **labels):
    images = np.random.default_rng(samples).integers(256, size=(samples, 3072), dtype=np.uint8)
    return {"batch_label": "a batch", "data": images, "filenames": [f"{i}.png" for i in range(samples)], **labels}


def write_cifar10(root, monkeypatch):
    """CIFAR-10's files; torchvision's real checks run against the sums of these. Gives the batches."""
    from pipetrain.zoo.torchvision_shim import datasets

    folder = root / "cifar-10-batches-py"
    batches = {f"data_batch_{i}": cifar_batch(i + 1, labels=[i] * (i + 1)) for i in range(1, 6)}
    batches["test_batch"] = cifar_batch(3, labels=[9, 8, 7])
    sums = [[name, write_pickle(folder / name, batch)] for name, batch in batches.items()]
    meta = write_pickle(folder / "batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(datasets.CIFAR10, "train_list", sums[:5])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", sums[5:])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": meta})
    return batches
