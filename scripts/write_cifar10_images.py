"""Writes CIFAR-10 as image files, on which `dataset=image_folder dataset.root=data/cifar10` trains.

python scripts/write_cifar10_images.py [FOLDER]

Fetches the archive into FOLDER (data by default) if it is not there, 170 MB, and writes its 60,000 images to
FOLDER/cifar10/{train,test}/CLASS/NNNNN.png.
"""

import argparse
from pathlib import Path

from tqdm import tqdm

from pipetrain.zoo.torchvision_shim import datasets


def main(folder: Path) -> None:
    """Writes both splits below `folder`/cifar10."""
    for train in (True, False):
        images = datasets.CIFAR10(folder, train=train, download=True)
        base = folder / "cifar10" / ("train" if train else "test")
        for name in images.classes:
            (base / name).mkdir(parents=True, exist_ok=True)
        for number, (image, target) in enumerate(tqdm(images, desc=str(base), unit="images")):
            image.save(base / images.classes[target] / f"{number:05d}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=Path("data"))
    main(parser.parse_args().folder)
