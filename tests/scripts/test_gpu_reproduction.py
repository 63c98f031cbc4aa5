"""The script that trains at the paper's size, on two minibatches of a CPU."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from papers.cli import PROGRAM
from pipetrain import cli

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_reproduction.sh"
TRAININGS = ("baseline", "early", "hybrid", "late")
TINY = ("device=cpu", "model.width=8", "train.batch_size=2", "dataset.limit=4", "log.every_steps=1")

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")


def called(folder, *words, **variables):
    given = {
        "RUNS": str(folder / "out"),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "MINUTES": "4",
        "JOBS": "2",
    }
    return subprocess.run(
        ["bash", str(SCRIPT), *map(str, words)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, **given, "SEEDS": "0", "STALE_STEPS": "2", **variables},
    )  # fmt: skip


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A zip of tiny images in two parts."""
    folder = tmp_path_factory.mktemp("images")
    with zipfile.ZipFile(folder / "whole.zip", "w") as file:
        for split in ("train", "test"):
            for name, color in (("cat", 60), ("dog", 180)):
                for number in range(2):
                    with file.open(f"cifar10/{split}/{name}/{number}.jpg", "w") as image:
                        Image.new("RGB", (32, 32), (color, 10 * number, 0)).save(image, "JPEG")
    content = (folder / "whole.zip").read_bytes()
    for number, half in enumerate((content[:1000], content[1000:])):
        (folder / f"part{number}").write_bytes(half)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trainings_are_judged_as_far_as_all_have_come(tmp_path, parts, capsys):
    done = called(tmp_path, parts / "part*", *TINY, "train.epochs=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 runs, 2 side by side" in done.stdout
    assert "exit code" not in done.stdout
    assert "the images are JPEG-compressed CIFAR-10\n" in done.stdout
    assert "at the paper's network and data, 2 of 2 epochs:" in done.stdout
    assert tuple(re.findall(r"^(\w+) +\d", done.stdout, re.MULTILINE)) == TRAININGS
    assert not (tmp_path / "out" / "images.zip").exists()
    folder = tmp_path / "out" / "runs"
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}-0" for name in TRAININGS]
    assert cli.carry_out(["at-size", str(folder)], PROGRAM) == 0
    assert capsys.readouterr().out in done.stdout


@pytest.mark.parametrize(
    ("words", "variables", "code", "said"),
    [
        ((), {}, 2, "Trains ResNet-20"),
        (("empty",), {}, 2, "train/CLASS/"),
        (("images",), {"MINUTES": "0"}, 2, "MINUTES=0"),
    ],
)
def test_what_cannot_work_is_said_at_once(tmp_path, words, variables, code, said):
    (tmp_path / "empty").mkdir()
    for split in ("train", "test"):
        (tmp_path / "images" / split).mkdir(parents=True)
    done = called(tmp_path, *(tmp_path / word for word in words), **variables)
    assert (done.returncode, said in done.stderr) == (code, True)
