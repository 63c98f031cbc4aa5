"""ImageNet's ILSVRC 2012 classification task, and Tiny-ImageNet, as their archives unpack."""

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from pipetrain.data.files.regular_file import text_of
from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.zoo.data.images.common import ImageDataset, Normalize, downloading, image_size
from pipetrain.zoo.data.images.folder import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ClassFolders,
    labelled_files,
    random_crop,
    resize_crop,
)

_IMAGENET_REMEDY = (
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
    from pipetrain.zoo.torchvision_shim import transforms

    check_whole("dataset.size", size, least=1)
    base = Path(root).expanduser().absolute()
    train, evaluation = (ClassFolders.read(base / split, root, _IMAGENET_REMEDY) for split in ("train", "val"))
    train.check_same(evaluation.classes, evaluation.folder, root)
    normalize = Normalize(IMAGENET_MEAN, IMAGENET_STD)
    centered = transforms.Compose([transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)])
    random = transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()])
    return ImageDataset(
        train=labelled_files(train.samples, random if augment else centered, normalize),
        eval=labelled_files(evaluation.samples, centered, normalize),
        channels=3,
        classes=len(train.classes),
        size=(size, size),
    )


_NAME = "tiny-imagenet-200"
_ARCHIVE = f"{_NAME}.zip"
_URL = f"http://cs231n.stanford.edu/{_ARCHIVE}"
_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
_TINY_REMEDY = f"set dataset.download=true to fetch it (237 MB), or unpack {_URL} there"


def tiny_imagenet(
    root: str = "data", size: int | Sequence[int] = 64, *, download: bool = False, augment: bool = False
) -> ImageDataset:
    """200 classes of ImageNet, 500 + 50 photographs of 64 x 64 each, below `root`/tiny-imagenet-200.

    Images become float32 (3, H, W) of `size` (a side or [height, width] in pixels), scaled where it is not 64, and are
    normalized with ImageNet's mean and deviation; PipeOptim's experiments scale them to 224. `augment` pads an image by
    an eighth of its short side, crops it at random and mirrors half of them, in training alone. The classes are in the
    order of their WordNet ids. Source: Le & Yang 2015.

    Raises:
        ConfigError: files are missing or damaged, or do not name the same classes.
    """
    height, width = image_size(size)
    base = Path(root).expanduser().absolute()
    folder = base if base.name == _NAME else base / _NAME
    if download:
        with downloading(_ARCHIVE, folder.parent, root):
            _download(folder.parent)
    train = ClassFolders.read(folder / "train", root, _TINY_REMEDY)
    train.check_same(_lines(folder / "wnids.txt", root), folder / "wnids.txt", root)
    normalize, fit = Normalize(IMAGENET_MEAN, IMAGENET_STD), resize_crop(height, width)
    return ImageDataset(
        train=labelled_files(train.samples, fit, normalize, random_crop(height, width) if augment else None),
        eval=labelled_files(_annotated(folder / "val", train.classes, root), fit, normalize),
        channels=3,
        classes=len(train.classes),
        size=(height, width),
    )


def _annotated(folder: Path, classes: Sequence[str], root: str) -> list[tuple[str, int]]:
    """The files and classes of the evaluation set: a line each of name, class, and the corners of a box."""
    numbers = {name: number for number, name in enumerate(classes)}
    table = folder / "val_annotations.txt"
    samples = []
    for place, line in enumerate(_lines(table, root), 1):
        name, _, rest = line.partition("\t")
        path, wnid = folder / "images" / name, rest.partition("\t")[0]
        if wnid not in numbers:
            raise ConfigError(f"dataset.root={root}: {table}, line {place}: the class {wnid!r} is not in {_NAME}/train")
        if not path.is_file():
            raise ConfigError(f"dataset.root={root}: {table}, line {place}: there is no {path}; {_TINY_REMEDY}")
        samples.append((str(path), numbers[wnid]))
    return samples


def _lines(path: Path, root: str) -> list[str]:
    """Lines of a text file that are not empty."""
    try:
        lines = text_of(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = "cannot be read" if path.exists() else "is missing"
        raise ConfigError(f"dataset.root={root}: {path} {problem}; {_TINY_REMEDY}") from error
    return [line for line in lines if line.strip()]


def _download(base: Path) -> None:
    """Fetches the archive if it is missing, and unpacks it; a folder that exists is complete."""
    from pipetrain.zoo.torchvision_shim import datasets

    if (base / _NAME).is_dir():
        return
    datasets.utils.download_url(_URL, base, _ARCHIVE, _MD5)
    with tempfile.TemporaryDirectory(dir=base) as unpacked, zipfile.ZipFile(base / _ARCHIVE) as archive:
        archive.extractall(unpacked)
        (Path(unpacked) / _NAME).rename(base / _NAME)
