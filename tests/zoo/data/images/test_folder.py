"""Folders of images, one for each class."""

import os
import shutil
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.refusals import assert_refused

from pipetrain.data.loader import Loader
from pipetrain.zoo.data.images.folder import IMAGENET_MEAN, IMAGENET_STD, ClassFolders, image_folder, open_image

SHARED = Path(__file__).resolve().parents[4].parent / "shared"
COLORS = {"blue": (0, 0, 250), "red": (250, 0, 0)}


def write(path, color=(9, 9, 9), size=(12, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


@pytest.fixture
def root(tmp_path):
    for split, suffixes in (("train", ("png", "jpg", "jpeg")), ("test", ("bmp",))):
        for name, color in COLORS.items():
            for suffix in suffixes:
                write(tmp_path / split / name / f"a.{suffix}", color)
    (tmp_path / "train" / "red" / "notes.txt").write_text("not an image")
    return tmp_path


def values(image):
    """Back to 0 … 255."""
    mean, std = (torch.tensor(constants)[:, None, None] for constants in (IMAGENET_MEAN, IMAGENET_STD))
    return ((image * std + mean) * 255).round()


def test_image_folder_is_read_from_its_tree(root):
    read = image_folder(root=str(root))
    assert (read.channels, read.classes, read.size) == (3, 2, (8, 12))
    assert (len(read.train), len(read.eval)) == (6, 2)
    assert [read.train.target(i).item() for i in range(6)] == [0, 1, 0, 1, 0, 1]
    image, target = read.eval[1]
    assert (image.shape, image.dtype, image.is_contiguous()) == ((3, 8, 12), torch.float32, True)
    assert (target.dtype, target.item()) == (torch.int64, 1)
    assert values(image)[:, 3, 4].tolist() == list(COLORS["red"])


@pytest.mark.parametrize("augment", [False, True])
def test_image_folder_in_memory_has_the_same_samples(root, augment):
    read, held = (image_folder(root=str(root), augment=augment, in_memory=flag) for flag in (False, True))
    for split in (root / "train", root / "test"):
        for image in split.rglob("*.*"):
            image.unlink()
    assert [held.train.target(i).item() for i in range(6)] == [read.train.target(i).item() for i in range(6)]
    assert (held.channels, held.classes, held.size) == (read.channels, read.classes, read.size)
    assert values(held.eval[1][0])[:, 3, 4].tolist() == list(COLORS["red"])
    assert_refused("cannot be decoded", lambda: read.eval[1])


@pytest.mark.parametrize(("suffix", "dtype"), [("png", "<u2"), ("tif", "<u2"), ("tif", ">u2"), ("pgm", ">u2")])
def test_sixteen_bits_of_gray_are_scaled_to_eight(tmp_path, suffix, dtype):
    gray = np.array([[0, 128, 129, 257 * 9], [257 * 200, 40_000, 65_406, 65_535]], dtype=dtype)
    path = tmp_path / f"a.{suffix}"
    if suffix == "pgm":  # older releases of Pillow read 16 bits of gray, but do not write them
        path.write_bytes(b"P5 4 2 65535\n" + gray.tobytes())
    else:
        Image.fromarray(gray).save(path)
    expected = [[0, 0, 1, 9], [200, 156, 254, 255]]
    read = open_image(str(path))
    assert read.mode == "RGB"
    assert np.asarray(read).tolist() == [[[value] * 3 for value in row] for row in expected]


def test_image_is_turned_as_its_exif_data_say(tmp_path):
    picture = Image.new("RGB", (16, 8), (250, 0, 0))
    picture.paste((0, 0, 250), (8, 0, 16, 8))  # red on the left, blue on the right
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left side is up
    picture.save(tmp_path / "a.png", exif=exif)
    read = open_image(str(tmp_path / "a.png"))
    assert (read.size, read.getpixel((4, 2)), read.getpixel((4, 13))) == ((8, 16), (250, 0, 0), (0, 0, 250))


def test_files_left_out_are_said_in_one_line(root):
    assert ": 1 .txt; images are .jpg" in image_folder(root=str(root)).notes[0]
    for name in ("a.gif", "b.GIF", ".DS_Store"):
        (root / "test" / "red" / name).touch()
    (line,) = image_folder(root=str(root)).notes
    assert line.startswith(f"dataset.root={root}: left out, as their names are not of images: ")
    assert all(part in line for part in ("1 .txt", "1 .gif", ", ..."))
    (root / "train" / "red" / "notes.txt").unlink()
    for path in (root / "test" / "red").glob("*[!p]"):
        path.unlink()
    assert image_folder(root=str(root)).notes == []


def test_image_folder_evaluates_on_val_if_there_is_no_test(root):
    (root / "test").rename(root / "val")
    assert len(image_folder(root=str(root)).eval) == 2


def test_image_folder_scales_short_side_and_crops_center(root):
    stripes = np.zeros((8, 24, 3), dtype=np.uint8)
    stripes[:, 8:16] = 200
    Image.fromarray(stripes).save(root / "test" / "blue" / "a.bmp")
    image = values(image_folder(root=str(root), size=4).eval[0][0])
    assert image.shape == (3, 4, 4)
    assert image[0, :, 1:3].eq(200).all()
    assert image_folder(root=str(root), size=[6, 5]).train[0][0].shape == (3, 6, 5)


def test_image_folder_converts_images_of_other_sizes_and_modes(root):
    Image.new("L", (30, 30), 7).save(root / "train" / "red" / "b.png")
    Image.new("RGBA", (5, 5), (1, 2, 3, 4)).save(root / "train" / "red" / "c.png")
    ((inputs,),) = Loader(image_folder(root=str(root)).train, batch_size=8).inputs(0)
    assert inputs.shape == (8, 3, 8, 12)


def test_image_folder_normalizes_with_the_mean_and_std_given(root):
    read = image_folder(root=str(root), mean=[0, 0, 0], std=[1, 1, 1])
    assert read.eval[1][0][0, 0, 0].item() == pytest.approx(250 / 255)


def test_augmentation_applies_to_training_alone(root):
    read = image_folder(root=str(root), augment=True)
    ((inputs,),) = Loader(read.train, batch_size=6, shuffle=False).inputs(0)
    assert inputs.shape == (6, 3, 8, 12)
    assert any(values(image)[:, 0, 0].eq(0).all() or values(image)[:, -1, -1].eq(0).all() for image in inputs)
    assert torch.equal(read.eval[0][0], image_folder(root=str(root)).eval[0][0])


def test_image_folder_targets_decode_no_image(root):
    read = image_folder(root=str(root))
    for path in read.train.images.paths:
        Path(path).write_bytes(b"damaged")
    ((targets,),) = Loader(read.train, batch_size=6, shuffle=False).targets(0)
    assert targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert_refused(r"a\.jp.*g cannot be decoded", list, Loader(read.train, batch_size=6).inputs(0))


def saved(root, dtype):
    Image.fromarray(np.full((8, 12), 70_000, dtype=dtype)).save(root / "train" / "red" / "b.tif")


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (lambda root: shutil.rmtree(root / "train"), {}, r"dataset.root=.*no folder .*/train"),
        (lambda root: shutil.rmtree(root / "test"), {}, r"no folder .*/test \(or val\)"),
        (lambda root: (root / "train" / "green").mkdir(), {}, "dataset.root=.*green"),
        (lambda root: shutil.rmtree(root / "test") or (root / "test").mkdir(), {}, "find any class folder"),
        (lambda root: write(root / "test" / "green" / "1.png"), {}, "test has 3; they differ in green"),
        (lambda root: os.mkfifo(root / "train" / "blue" / "0.png"), {}, r"0\.png .*not a regular file"),
        (lambda root: (root / "train" / "red" / "b.png").write_bytes(b""), {"in_memory": True}, r"red/b\.png"),
        (lambda root: saved(root, np.int32), {"in_memory": True}, r"b\.tif .*convert it to 8 or 16 bits"),
        (lambda root: saved(root, np.float32), {"in_memory": True}, r"b\.tif .*convert it to 8 or 16 bits"),
        (lambda root: zipfile.ZipFile(root / "a.zip", "w").close(), {"root": "a.zip"}, r"unpack .*a\.zip"),
        (lambda _root: None, {"mean": [0.5]}, "dataset.mean="),
        (lambda _root: None, {"std": [1, 1, 0]}, "dataset.std="),
        (lambda _root: None, {"std": ["a", 1, 1]}, "dataset.std="),
    ],
)
def test_folder_that_cannot_be_used_is_refused(root, damage, options, message, monkeypatch):
    damage(root)
    monkeypatch.chdir(root)
    assert_refused(message, partial(image_folder, **{"root": ".", **options}))


def test_image_folder_reads_cifar10_as_images(tmp_path):
    path = SHARED / "data" / "cifar10_jpeg.zip"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(("0000.jpg", "0001.jpg"))]
        archive.extractall(tmp_path, names)
    read = image_folder(root=str(tmp_path / "cifar10"))
    assert (read.classes, read.size, len(read.train), len(read.eval)) == (10, (32, 32), 20, 20)
    ((inputs, _),) = Loader(read.train, batch_size=20).samples(0)
    assert inputs[0].shape == (20, 3, 32, 32)


def test_differing_classes_are_counted_and_the_first_ones_named():
    folders = ClassFolders(Path("/train"), [f"n{i}" for i in range(5)], [])
    folders.check_same({f"n{i}" for i in range(5)}, Path("/val"), "r")
    named = "dataset.root=r: /train has 5 .*/val has 1; .* m, n0, n1 and 3 more"
    assert_refused(named, partial(folders.check_same, ["m"], Path("/val"), "r"))


def test_the_first_samples_have_all_classes(tmp_path):
    for name, images in (("cat", 3), ("dog", 1), ("owl", 2)):
        (tmp_path / name).mkdir()
        for i in range(images):
            (tmp_path / name / f"{i}.png").touch()
    read = ClassFolders.read(tmp_path, "r", "")
    names = [(Path(path).parent.name, Path(path).stem) for path, _ in read.samples]
    assert names == [("cat", "0"), ("dog", "0"), ("owl", "0"), ("cat", "1"), ("owl", "1"), ("cat", "2")]
    assert [target for _, target in read.samples] == [0, 1, 2, 0, 2, 0]


@pytest.mark.parametrize(("kept", "added"), [(60, b""), (0, b""), (8, b"\0" * 60)])
@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp"])
def test_file_that_cannot_be_decoded_is_named(tmp_path, suffix, kept, added):
    path = tmp_path / f"a.{suffix}"
    Image.effect_noise((40, 40), 90).save(path)
    path.write_bytes(path.read_bytes()[:kept] + added)
    assert_refused(f"dataset: .*{path}", partial(open_image, str(path)))
