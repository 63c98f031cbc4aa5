import os

import pytest
import torch
from support import stored_images
from support.refusals import assert_refused

from pipetrain.data.loader import Loader
from pipetrain.zoo.data.images.common import CropFlip, LabelledImages, Normalize, downloading, image_size


def test_normalization_has_the_bits_of_torchvision():
    from pipetrain.zoo.torchvision_shim import transforms

    image = torch.randint(256, (3, 5, 4), dtype=torch.uint8)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    reference = transforms.Normalize(mean, std)(transforms.ToTensor()(image.permute(1, 2, 0).numpy()))
    assert torch.equal(Normalize(mean, std)(image), reference)


def test_stored_images_normalized_together_have_the_bits_of_samples():
    held = stored_images.build().train
    loader = Loader(held, batch_size=5, shuffle=False)
    (expected,) = next(loader.inputs(0))
    loader.stored = True
    (stored,) = next(loader.inputs(0))
    assert stored.dtype == torch.uint8
    assert torch.equal(*loader.finish((stored,)), expected)


@pytest.mark.parametrize("flip", [False, True])
def test_augmentation_takes_all_crops_of_the_padded_image(flip):
    image = torch.arange(1, 7, dtype=torch.uint8).reshape(1, 2, 3)
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    crops = {tuple(padded[:, y : y + 2, x : x + 3].flatten().tolist()) for y in range(3) for x in range(3)}
    mirrored = {tuple(torch.tensor(crop).reshape(2, 3).flip(-1).flatten().tolist()) for crop in crops}
    torch.manual_seed(0)
    augment = CropFlip(padding=1, flip=flip)
    seen = {tuple(augment(image).flatten().tolist()) for _ in range(500)}
    assert seen == (crops | mirrored if flip else crops)


def test_augmentation_mirrors_half_of_the_images():
    image = torch.tensor([[[1, 0]]], dtype=torch.uint8)
    torch.manual_seed(0)
    mirrored = sum(int(CropFlip(padding=0)(image)[0, 0, 1]) for _ in range(1000))
    assert 430 < mirrored < 570


def test_images_in_memory_are_not_changed_by_reading():
    images = torch.full((2, 1, 4, 4), 200, dtype=torch.uint8)
    held = LabelledImages(images, torch.tensor([3, 1], dtype=torch.uint8), Normalize((0.5,), (0.5,)), CropFlip(1))
    image, target = held[1]
    image.zero_()
    assert int(images.sum()) == 2 * 16 * 200
    assert target.item() == held.target(1).item() == 1
    assert len(held) == 2


@pytest.mark.parametrize(("size", "expected"), [(32, (32, 32)), ([24, 48], (24, 48)), ((1, 2), (1, 2))])
def test_image_size_is_read_from_a_number_or_a_pair(size, expected):
    assert image_size(size) == expected


def test_lock_of_a_download_that_is_a_link_is_neither_followed_nor_emptied(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("not to be overwritten")
    (tmp_path / ".pipetrain.lock").symlink_to(precious)
    assert_refused(r"dataset.root=r: .*lock is a symbolic link", lambda: downloading("X", tmp_path, "r").__enter__())
    assert precious.read_text() == "not to be overwritten"


def test_lock_of_a_download_that_is_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / ".pipetrain.lock")
    assert_refused("not a regular file", lambda: downloading("X", tmp_path, "r").__enter__())


def test_lock_of_a_download_keeps_its_content(tmp_path):
    (tmp_path / ".pipetrain.lock").write_text("x")
    with downloading("X", tmp_path, "r"):
        assert (tmp_path / ".pipetrain.lock").read_text() == "x"
