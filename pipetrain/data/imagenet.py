"""ImageNet's ILSVRC 2012 classification task, unpacked into a folder per class."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image

from pipetrain.data.class_folders import ClassFolders
from pipetrain.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from pipetrain.data.images import ImageDataset, Normalize
from pipetrain.errors import check_whole

_REMEDY = (
    "ImageNet must be fetched by hand, with an account at image-net.org: unpack ILSVRC2012_img_train.tar and the tars "
    "in it to ROOT/train/WNID/, and sort the images of ILSVRC2012_img_val.tar into ROOT/val/WNID/"
)


def imagenet(root: str = "data/imagenet", size: int = 224, *, augment: bool = False) -> ImageDataset:
    """Photographs at `root`/train/WNID/FILE and `root`/val/WNID/FILE, as torchvision unpacks them, too.

    Images become float32 (3, `size`, `size`), normalized with ImageNet's own mean and deviation: scaled to a short side
    of 256/224 `size` and cropped about the center. With `augment` training crops 8 to 100 % of an image at random, of
    ratios from 3:4 to 4:3, scales that to `size` and mirrors half of them (Szegedy et al. 2015, section 6). The classes
    are in the order of their WordNet ids; there may be fewer than 1000. Source: Russakovsky et al. 2015.

    Raises:
        ConfigError: folders are missing or empty, or the two splits have different classes.
    """
    check_whole("dataset.size", size, least=1)
    base = Path(root).expanduser().absolute()
    train, evaluation = (ClassFolders.read(base / split, root, _REMEDY) for split in ("train", "val"))
    train.check_same(evaluation.classes, evaluation.folder, root)
    normalize, centered = Normalize(IMAGENET_MEAN, IMAGENET_STD), _centered(size)
    return ImageDataset(
        train=ImageFiles(train.samples, _at_random(size) if augment else centered, normalize),
        eval=ImageFiles(evaluation.samples, centered, normalize),
        channels=3,
        classes=len(train.classes),
        size=(size, size),
    )


def _centered(size: int) -> Callable[[Image.Image], Image.Image]:
    from pipetrain.libraries.torchvision_shim import transforms

    crop: Callable[[Image.Image], Image.Image] = transforms.Compose(
        [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    )
    return crop


def _at_random(size: int) -> Callable[[Image.Image], Image.Image]:
    from pipetrain.libraries.torchvision_shim import transforms

    crop: Callable[[Image.Image], Image.Image] = transforms.Compose(
        [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    )
    return crop
