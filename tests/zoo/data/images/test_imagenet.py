"""ImageNet, on a few images in its folders."""

from functools import partial

import pytest
import torch
from PIL import Image
from support.refusals import assert_refused

from pipetrain.data.loader import Loader
from pipetrain.zoo.data.images.imagenet import imagenet
from pipetrain.zoo.torchvision_shim import transforms


@pytest.fixture
def root(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            (tmp_path / split / wnid).mkdir(parents=True)
            for i, size in enumerate(((30, 40), (41, 29))):
                pixels = torch.randint(256, (*size, 3), generator=generator, dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(tmp_path / split / wnid / f"{i}.JPEG")
    return tmp_path


def test_evaluation_images_match_torchvision_preprocessing(root):
    read = imagenet(str(root), size=14)
    assert (read.channels, read.classes, read.size, len(read.eval)) == (3, 2, (14, 14), 4)
    assert read.eval.targets.tolist() == [0, 1, 0, 1]
    theirs = transforms.Compose(
        [
            transforms.Resize(16),
            transforms.CenterCrop(14),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    for i, path in enumerate(read.eval.images.paths):
        assert torch.equal(read.eval[i][0], theirs(Image.open(path).convert("RGB")))
        assert read.train[i][0].shape == (3, 14, 14)


def test_training_crop_depends_on_seed_epoch_and_sample_only(root):
    def epoch(number, seed=0):
        loader = Loader(imagenet(str(root), size=14, augment=True).train, batch_size=4, shuffle=False, seed=seed)
        ((images,),) = loader.inputs(number)
        return images

    assert torch.equal(epoch(0), epoch(0))
    assert not torch.equal(epoch(0), epoch(1))
    assert not torch.equal(epoch(0), epoch(0, seed=1))
    plain = imagenet(str(root), size=14)
    assert torch.equal(imagenet(str(root), size=14, augment=True).eval[0][0], plain.eval[0][0])


def flattened(root):
    for path in (root / "val").glob("*/*"):
        path.rename(root / "val" / path.name)
    for folder in (root / "val").glob("n*/"):
        folder.rmdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "val").rename(root / "validation"), "no folder .*/val; .*ILSVRC2012_img_val.tar"),
        (flattened, "find any class folder.*sort the images"),
        (lambda root: (root / "train" / "n01443537").rename(root / "train" / "n9"), "they differ in n01443537, n9"),
    ],
)
def test_splits_that_are_missing_or_differ_are_named(root, damage, message):
    damage(root)
    assert_refused(f"dataset.root={root}: .*{message}", partial(imagenet, str(root)))
