"""The package of the examples is installed, found, trained with, tested and removed."""

import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from support import cli as command_line
from support.cli import summary

PACKAGE = Path(__file__).resolve().parents[1] / "examples" / "own_method"
SHORT = ("dataset.limit=64", "train.batch_size=32", "train.epochs=1", "threads=1", "partition.stages=2")
DATA = ("model=own_model", "dataset=own_dataset")
GPIPE = ("method=gpipe", "train.microbatches=4", *DATA)


class Environment:
    """A virtual environment that also sees the packages of this one, pipetrain's checkout first."""

    def __init__(self, folder):
        venv.create(folder / "venv", with_pip=False)
        self.folder, self.python = folder, str(folder / "venv" / "bin" / "python")
        site = subprocess.run(
            [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        own = sysconfig.get_path("purelib")
        (Path(site) / "of_the_tests.pth").write_text(f"import site; site.addsitedir({own!r})\n")

    def run(self, *words, code=0):
        environment = command_line.environment(OMP_NUM_THREADS="1")
        done = subprocess.run(
            [self.python, "-m", *words], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def trained(self, name, *words):
        """Hashes of the losses and weights of a run."""
        self.run("pipetrain", "run", f"hydra.run.dir={name}", *words, *SHORT)
        found = summary(self.folder / name)
        return found["loss_sha256"], found["weights_sha256"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a dozen commands, each of which imports torch
@pytest.mark.parametrize(
    "flags", [["--editable"], pytest.param([], marks=pytest.mark.exhaustive)], ids=["editable", "copied"]
)
def test_installed_package_trains_and_passes_its_tests(tmp_path, flags):
    there = Environment(tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    there.run("pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet", *flags, "./mine")
    assert there.run("pipetrain", "list").stdout.count("[own-method]\n") == 4
    stashing = ("method=own_method", *DATA)
    found = there.trained("distributed", *stashing)
    assert there.trained("simulated", *stashing, "executor=simulated") == found
    there.run("pipetrain", "eval", "simulated")  # without --trust
    found = there.trained("own", *GPIPE, "schedule=own_schedule")
    assert there.trained("gpipe", *GPIPE, "executor=simulated") == found
    assert " passed" in there.run("pytest", "-p", "no:cacheprovider", "mine").stdout

    there.run("pip", "uninstall", "--yes", "--quiet", "own-method")
    assert "method=own_method: no such method" in there.run("pipetrain", "run", "method=own_method", code=2).stderr
    refused = there.run("pipetrain", "eval", "simulated", code=2).stderr
    assert "own_method.dataset.OwnDataset is not pipetrain's own code" in refused
