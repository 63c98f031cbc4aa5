"""Tiny-ImageNet, on a few images in the form of its archive."""

import hashlib
import zipfile
from functools import partial

import pytest
import torch
from PIL import Image
from support.refusals import assert_refused

from pipetrain.zoo.data.images import imagenet as module
from pipetrain.zoo.data.images.common import Normalize
from pipetrain.zoo.data.images.folder import IMAGENET_MEAN, IMAGENET_STD
from pipetrain.zoo.data.images.imagenet import tiny_imagenet

COLORS = {"n02000000": (200, 0, 0), "n01000000": (0, 0, 200)}


@pytest.fixture
def folder(tmp_path):
    """Two classes, two training images each; three evaluation images."""
    base = tmp_path / "tiny-imagenet-200"
    for wnid, color in COLORS.items():
        (base / "train" / wnid / "images").mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (64, 64), color).save(base / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    (base / "wnids.txt").write_text("\n".join(COLORS) + "\n")
    (base / "val" / "images").mkdir(parents=True)
    wnids = ["n02000000", "n01000000", "n02000000"]
    for i, wnid in enumerate(wnids):
        Image.new("L" if i == 2 else "RGB", (64, 64), 90 if i == 2 else COLORS[wnid]).save(
            base / "val" / "images" / f"val_{i}.JPEG"
        )
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n" for i, wnid in enumerate(wnids)]
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    return base


def test_splits_have_the_classes_of_folders_and_of_the_table(folder):
    read = tiny_imagenet(str(folder.parent))
    assert (read.channels, read.classes, read.size) == (3, 2, (64, 64))
    assert read.train.targets.tolist() == [0, 1, 0, 1]
    assert read.eval.targets.tolist() == [1, 0, 1]
    image, target = read.eval[0]
    red = torch.tensor(COLORS["n02000000"], dtype=torch.uint8)[:, None, None].expand(3, 64, 64)
    assert target == 1
    torch.testing.assert_close(image, Normalize(IMAGENET_MEAN, IMAGENET_STD)(red), atol=0.05, rtol=0)  # a JPEG
    assert tiny_imagenet(str(folder)).train[0][0].shape == (3, 64, 64), "the folder itself is a root, too"


def test_images_are_scaled_and_only_training_ones_augmented(folder):
    read = tiny_imagenet(str(folder.parent), size=224, augment=True)
    assert read.size == (224, 224)
    assert [read.train[0][0].shape, read.eval[2][0].shape] == [(3, 224, 224)] * 2
    corners = read.train[0][0][:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert len(torch.unique(corners, dim=1)[0]) > 1, "the crop shows the padding"
    assert torch.equal(read.eval[0][0], tiny_imagenet(str(folder.parent), size=224).eval[0][0])


def unlisted(folder):
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01000000\t0\t0\t1\t1\n\nval_1.JPEG n01\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("train", "no folder .*/tiny-imagenet-200/train; .*dataset.download=true"),
        ("val", "val_annotations.txt is missing; .*dataset.download=true"),
        ("wnids.txt", "wnids.txt is missing"),
        ("val/images/val_1.JPEG", "val_annotations.txt, line 2: .*val_1.JPEG"),
        ("train/n01000000", "they differ in n01000000"),
        (unlisted, "val_annotations.txt, line 2: .*''"),
    ],
)
def test_what_is_missing_is_named_with_where_it_was_looked_for(folder, damage, message):
    if callable(damage):
        damage(folder)
    else:
        (folder / damage).rename(folder.parent / "moved")
    assert_refused(f"dataset.root={folder.parent}: .*{message}", partial(tiny_imagenet, str(folder.parent)))


@pytest.fixture
def archive(folder, tmp_path, monkeypatch):
    """The archive where the files are to be, and nowhere else."""
    path = tmp_path / "fetched" / "tiny-imagenet-200.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as made:
        for each in folder.rglob("*"):
            made.write(each, each.relative_to(folder.parent))
    monkeypatch.setattr(module, "_URL", (tmp_path / "nowhere.zip").as_uri())
    monkeypatch.setattr(module, "_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


@pytest.mark.parametrize("folder_itself", [False, True])
def test_archive_is_unpacked_once(archive, folder_itself):
    root = str(archive.with_suffix("") if folder_itself else archive.parent)
    assert len(tiny_imagenet(root, download=True).train) == 4
    archive.unlink()
    assert len(tiny_imagenet(root, download=True).eval) == 3


def test_damaged_archive_that_cannot_be_refetched_is_refused(archive):
    archive.write_bytes(archive.read_bytes()[:100])
    named = f"dataset.download=true: {archive.name} .*{archive.parent}"
    assert_refused(named, partial(tiny_imagenet, str(archive.parent), download=True))
    assert [path.name for path in archive.parent.iterdir() if path.is_dir()] == []
