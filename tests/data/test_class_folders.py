"""Folders of images, one for each class."""

from pathlib import Path

import pytest

from pipetrain.data.class_folders import ClassFolders
from pipetrain.errors import ConfigError


def test_differing_classes_are_counted_and_the_first_ones_named():
    folders = ClassFolders(Path("/train"), [f"n{i}" for i in range(5)], [])
    folders.check_same({f"n{i}" for i in range(5)}, Path("/val"), "r")
    with pytest.raises(ConfigError) as caught:
        folders.check_same(["m"], Path("/val"), "r")
    assert str(caught.value) == (
        "dataset.root=r: /train has 5 classes and /val has 1; they differ in m, n0, n1 and 3 more"
    )
