import inspect
from pathlib import Path

import pytest
from hydra.utils import get_method, instantiate
from omegaconf import OmegaConf
from PIL import Image

FOLDER = Path(__file__).resolve().parents[3] / "conf" / "dataset"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "custom")


def load(name):
    return OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))


def test_dataset_choices_have_the_names_of_their_data_sets():
    images = {"cifar10", "cifar100", "fashion_mnist", "fashion_mnist_mini", "image_folder", "mnist"}
    assert images | {"synthetic_images"} <= set(NAMES)
    assert load("custom") == {"_target_": "???"}


@pytest.mark.parametrize("name", [*NAMES, "custom"])
def test_dataset_files_open_with_a_summary(name):
    first = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert len(first) < 110


@pytest.mark.parametrize("name", NAMES)
def test_options_are_those_of_the_target_with_its_defaults(name):
    options = load(name)
    target = get_method(options.pop("_target_"))
    defaults = {key: parameter.default for key, parameter in inspect.signature(target).parameters.items()}
    missing = {key: "???" for key, value in defaults.items() if value is inspect.Parameter.empty}
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()} | missing
    assert listed.keys() == options.keys()
    assert listed == options or name != target.__name__  # others name the files of a known data set


@pytest.mark.parametrize("name", ["fashion_mnist_mini", "synthetic_images"])
def test_dataset_targets_build_a_data_set(name):
    built = instantiate(OmegaConf.create(load(name)), augment=True)
    assert len(built.train) > len(built.eval) > 0


def test_lists_of_numbers_arrive_from_hydra():
    assert instantiate(OmegaConf.create({**load("synthetic_images"), "size": [5, 7]})).size == (5, 7)


def test_lists_of_constants_arrive_from_hydra(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("RGB", (6, 4)).save(tmp_path / split / "a" / "1.png")
    built = instantiate(OmegaConf.create({**load("image_folder"), "root": str(tmp_path), "size": [3, 5]}))
    assert built.train[0][0].shape == (3, 3, 5)
