"""CIFAR-10 as image files."""

import runpy
from pathlib import Path

import numpy as np
from PIL import Image
from support.cifar_files import write_cifar10

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "write_cifar10_images.py"


def test_images_are_of_archive_in_one_folder_per_class(tmp_path, monkeypatch):
    batches = write_cifar10(tmp_path, monkeypatch)
    runpy.run_path(str(SCRIPT))["main"](tmp_path)
    folder = tmp_path / "cifar10"
    assert sorted(path.name for path in (folder / "test").iterdir()) == list("abcdefghij")
    assert {path.parent.name: path.name for path in (folder / "test").glob("*/*")} == {
        "j": "00000.png", "i": "00001.png", "h": "00002.png",
    }  # fmt: skip
    assert [len(list((folder / "train" / name).iterdir())) for name in "abcdef"] == [0, 2, 3, 4, 5, 6]
    first = batches["data_batch_1"]["data"][0].reshape(3, 32, 32).transpose(1, 2, 0)
    assert np.array_equal(np.array(Image.open(folder / "train" / "b" / "00000.png")), first)
