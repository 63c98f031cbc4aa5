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


def test_the_first_samples_have_all_classes(tmp_path):
    for name, images in (("cat", 3), ("dog", 1), ("owl", 2)):
        (tmp_path / name).mkdir()
        for i in range(images):
            (tmp_path / name / f"{i}.png").touch()
    read = ClassFolders.read(tmp_path, "r", "")
    names = [(Path(path).parent.name, Path(path).stem) for path, _ in read.samples]
    assert names == [("cat", "0"), ("dog", "0"), ("owl", "0"), ("cat", "1"), ("owl", "1"), ("cat", "2")]
    assert [target for _, target in read.samples] == [0, 1, 2, 0, 2, 0]
