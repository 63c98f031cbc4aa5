"""Folders of images, one for each class, and what may be wrong with them."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pipetrain.errors import ConfigError, one_line

_SHOWN = 3


@dataclass(frozen=True)
class ClassFolders:
    """The images below a folder.

    Attributes:
        folder: that holds the folders of the classes.
        classes: their names, in order.
        samples: each image's file, and the number of its class: the first of each class, the second of each, and so
            on, so that the first thousand, to which `dataset.limit` may limit a split, have all classes.
    """

    folder: Path
    classes: list[str]
    samples: list[tuple[str, int]]

    @classmethod
    def read(cls, folder: Path, root: str, remedy: str) -> "ClassFolders":
        """Those of one split, the classes in the order of their names; images may lie deeper.

        Args:
            folder: of the split.
            root: the setting dataset.root, for errors.
            remedy: what would work, for errors.

        Raises:
            ConfigError: the folder is missing or has no classes, or one of these has no images.
        """
        from pipetrain.libraries.torchvision_shim import datasets

        if not folder.is_dir():
            raise ConfigError(f"dataset.root={root}: no folder {folder}; {remedy}")
        try:
            read = datasets.ImageFolder(folder)
        except OSError as error:  # what it raises for a class without images, too
            raise ConfigError(f"dataset.root={root}: {folder} cannot be read: {one_line(error)}; {remedy}") from error
        return cls(folder, read.classes, _class_by_class(read.samples))

    def check_same(self, others: Collection[str], where: Path, root: str) -> None:
        """Checks that `where` has the same classes.

        Raises:
            ConfigError: the two differ.
        """
        differ = sorted(set(self.classes) ^ set(others))
        if differ:
            raise ConfigError(
                f"dataset.root={root}: {self.folder} has {len(self.classes)} classes and {where} has {len(others)}; "
                f"they differ in {_some(differ)}"
            )


def _class_by_class(samples: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The samples, sorted by their place in their class."""
    seen: Counter[int] = Counter()
    places = []
    for path, target in samples:
        places.append((seen[target], target, path))
        seen[target] += 1
    return [(path, target) for _, target, path in sorted(places)]


def _some(names: list[str]) -> str:
    further = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + further
