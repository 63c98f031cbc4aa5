"""Images in files."""

import pytest
from PIL import Image

from pipetrain.data.image_files import Fit, ImageFiles, opened
from pipetrain.data.images import Normalize
from pipetrain.errors import ConfigError


@pytest.mark.parametrize(("kept", "added"), [(60, b""), (0, b""), (8, b"\0" * 60)])
@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp"])
def test_file_that_cannot_be_decoded_is_named(tmp_path, suffix, kept, added):
    path = tmp_path / f"a.{suffix}"
    Image.effect_noise((40, 40), 90).save(path)
    path.write_bytes(path.read_bytes()[:kept] + added)
    with pytest.raises(ConfigError, match=f"dataset: the image {path} cannot be decoded: "):
        opened(str(path))


def test_targets_decode_no_image(tmp_path):
    files = ImageFiles([(str(tmp_path / "absent.png"), 3)], Fit((2, 2)), Normalize((0.5,) * 3, (0.5,) * 3))
    assert (len(files), files.target(0).item(), files.targets.tolist()) == (1, 3, [3])
    with pytest.raises(ConfigError, match=r"absent\.png"):
        files[0]
