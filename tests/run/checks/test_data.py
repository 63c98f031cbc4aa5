"""What is found in a data set before any process starts."""

import pytest
from PIL import Image
from support.worker_pool import settings

from pipetrain.errors import ConfigError
from pipetrain.run.preflight import prepare
from pipetrain.tracking.run_directory import RunDirectory


@pytest.mark.parametrize("split", ["train", "test"])
def test_picture_that_cannot_be_decoded_is_named_before_the_start(tmp_path, split):
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (16, 16)).save(tmp_path / part / label / f"{number}.png")
    damaged = tmp_path / split / "dog" / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    images = {"_target_": "pipetrain.data.image_folder.image_folder", "root": str(tmp_path)}
    cut = {"_target_": "pipetrain.planner.partition_rules.Even", "stages": 2}
    model = {"_target_": "pipetrain.models.lenet.build"}
    chosen = settings("gpipe", dataset=images, model=model, partition=cut, device="cpu")
    with pytest.raises(ConfigError, match=f"the image {damaged} cannot be decoded"):
        prepare(chosen, RunDirectory(tmp_path / "run"))
