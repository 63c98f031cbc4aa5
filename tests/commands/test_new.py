"""The package that `pipetrain new` writes: it is installed, found, trained with, tested, checked and removed."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support import cli as command_line
from support.cli import refused, summary

from pipetrain import cli

RUN = {
    "method": ("model=lenet5", "partition.stages=2"),
    "schedule": ("method=gpipe", "model=lenet5", "partition.stages=2", "train.microbatches=4"),
    "model": ("method=pipedream", "partition.stages=2"),
    "dataset": ("method=pipedream", "model=lenet5", "partition.stages=2"),
}
SHORT = ("dataset.limit=64", "train.batch_size=32", "train.epochs=1", "threads=1")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", RUN)
def test_package_has_class_settings_test_and_readme(inside, capsys, kind):
    assert cli.carry_out(["new", kind, "my-idea"]) == 0
    out = capsys.readouterr().out
    package, source = inside / "pipetrain-my-idea", "src/pipetrain_my_idea"
    expected = ["README.md", "pyproject.toml", f"{source}/__init__.py", f"{source}/conf/{kind}/my_idea.yaml"]
    assert files(package) == sorted([*expected, "tests/test_my_idea.py"])
    assert out.startswith(f"written to {package.name}: {', '.join(expected)}, tests/test_my_idea.py\n")
    run = f"pipetrain run {kind}=my_idea {' '.join(RUN[kind])}".replace("stages=2", "stages=3")
    assert out.endswith(f"\nnext: pip install -e {package.name}\n      {run}\n      pytest {package.name}\n")
    assert run in (package / "README.md").read_text()
    assert OmegaConf.load(package / source / f"conf/{kind}/my_idea.yaml")["_target_"] == "pipetrain_my_idea.MyIdea"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"pipetrain.choices": {"my_idea": "pipetrain_my_idea.conf"}}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("method", "3x"), "pipetrain new method 3x: a name is needed that begins with a letter and has lower-case"),
        (("method", "MyIdea"), "pipetrain new method MyIdea: a name is needed"),
        (("dataset", "a/b"), "pipetrain new dataset a/b: a name is needed"),
        (("model", "null"), "pipetrain new model null: a name is needed"),
        (("method", "pipedream"), "pipetrain new method pipedream: method=pipedream exists already"),
        (("method", "naive-async"), "pipetrain new method naive-async: method=naive_async exists already"),
        (("schedule", "custom"), "pipetrain new schedule custom: schedule=custom exists already"),
        (("method", "weight-read"), "pipetrain new method weight-read: pipetrain.WeightRead is another class"),
        (("method", "taken"), "pipetrain new method taken: a package pipetrain_taken is installed already"),
        (("method", "mine", "-o", "full"), "-o full: exists; name a new folder"),
    ],
)
def test_unusable_name_or_folder_is_refused(inside, monkeypatch, words, reason):
    monkeypatch.syspath_prepend(str(inside))
    (inside / "pipetrain_taken.py").touch()
    (inside / "full").mkdir()
    before = files(inside)
    refused("new", *words, cwd=inside, message=f"pipetrain: error: {reason}")
    assert files(inside) == before


def test_output_names_the_folder(inside, capsys):
    assert cli.carry_out(["new", "model", "net", "--output", "a b/c"]) == 0
    assert "pip install -e 'a b/c'\n" in capsys.readouterr().out
    assert (inside / "a b" / "c" / "pyproject.toml").is_file()


def test_completion_offers_the_kinds(capsys):
    assert cli.carry_out(["completion", "--line", "pipetrain new m"]) == 0
    assert capsys.readouterr().out == "method \nmodel \n"


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

    def run(self, *words, code=0, cwd=None):
        environment = command_line.environment(OMP_NUM_THREADS="1")
        done = subprocess.run(
            [self.python, "-m", *words], cwd=cwd or self.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def hashes(self, name):
        found = summary(self.folder / name)
        return found["loss_sha256"], found["weights_sha256"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a dozen commands, each of which imports torch
@pytest.mark.parametrize(
    ("kind", "editable"),
    [
        ("method", True),
        pytest.param("model", False, marks=pytest.mark.exhaustive),
        pytest.param("schedule", False, marks=pytest.mark.exhaustive),
        pytest.param("dataset", True, marks=pytest.mark.exhaustive),
    ],
)
def test_installed_package_trains_and_passes_its_test(tmp_path, kind, editable):
    there = Environment(tmp_path)
    there.run("pipetrain", "new", kind, "idea")
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", *(["--editable"] if editable else []))
    there.run("pip", "install", *flags, "./pipetrain-idea")
    assert "[pipetrain-idea]\n" in there.run("pipetrain", "list", kind).stdout
    words = (f"{kind}=idea", *RUN[kind])
    both = ("executor=distributed,simulated", "hydra.sweep.dir=.", "hydra.sweep.subdir=${executor.name}")
    there.run("pipetrain", "run", "--multirun", *words, *both, *SHORT)
    found = there.hashes("distributed")
    assert there.hashes("simulated") == found
    if kind == "schedule":
        gpipe = ("hydra.run.dir=gpipe", "schedule=gpipe", "executor=simulated")
        there.run("pipetrain", "run", *words, *gpipe, *SHORT)
        assert there.hashes("gpipe") == found
        there.run("pipetrain", "timeline", *words, "-o", "timeline")
    if kind == "method":
        sweep = (*words, "seed=0,1", "executor=simulated", "hydra/launcher=joblib", "hydra.sweep.dir=sweep")
        there.run("pipetrain", "run", "--multirun", *sweep, *SHORT)
    there.run("pipetrain", "eval", "simulated")  # without --trust
    assert " passed" in there.run("pytest", "-p", "no:cacheprovider", "pipetrain-idea").stdout

    there.run("pip", "uninstall", "--yes", "--quiet", "pipetrain-idea")
    assert f"{kind}=idea: no such {kind}" in there.run("pipetrain", "run", *words, code=2).stderr
    if kind in ("model", "dataset"):
        refused = there.run("pipetrain", "eval", "simulated", code=2).stderr
        assert "pipetrain_idea.Idea is not pipetrain's own code" in refused


@pytest.mark.slow
@pytest.mark.timeout(900)  # mypy reads torch
def test_packages_pass_lint_and_type_checks(inside):
    for kind in RUN:
        assert cli.carry_out(["new", kind, f"{kind}-of-a-rather-long-name"]) == 0
    packages = sorted(each.name for each in inside.iterdir())
    tool = Path(sys.executable).parent
    for words in (["ruff", "check", "--no-cache"], ["ruff", "format", "--check", "--no-cache"]):
        subprocess.run([tool / words[0], *words[1:], *packages], check=True)
    configurations = [tomllib.loads((inside / package / "pyproject.toml").read_text()) for package in packages]
    assert all(each["tool"]["mypy"] == configurations[0]["tool"]["mypy"] for each in configurations)
    words = ["--follow-imports=silent", "--config-file", f"{packages[0]}/pyproject.toml"]  # all at once: it reads torch
    parts = [f"{package}/{part}" for package in packages for part in ("src", "tests")]
    environment = {**os.environ, "MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(inside / "cache")}
    subprocess.run([tool / "mypy", *words, *parts], env=environment, check=True)
