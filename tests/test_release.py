"""What a release is made of agrees: the version in every file that names it, and the files of wheel and sdist."""

import contextlib
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import pipetrain

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHECK = runpy.run_path(str(ROOT / "scripts" / "check_dist.py"))


def test_citation_names_version_and_license_of_package():
    citation = OmegaConf.load(ROOT / "CITATION.cff")
    assert (citation["version"], citation["license"]) == (pipetrain.__version__, PYPROJECT["project"]["license"])


def test_newest_changes_are_of_this_version_with_a_date_or_unreleased():
    newest = re.search("^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert re.fullmatch(rf"{re.escape(pipetrain.__version__)}, (unreleased|\d{{4}}-\d\d-\d\d)", newest)


def test_distributions_take_their_version_from_the_package():
    assert PYPROJECT["project"]["dynamic"] == ["version", "readme"]
    home = ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"]
    assert runpy.run_path(str(home))["__version__"] == pipetrain.__version__


@pytest.mark.parametrize(
    ("text", "refused"),
    [("[Hydra](https://hydra.cc)", False), ("[methods](docs/methods.md)", True), ("![figure](docs/a.svg)", True)],
)
def test_description_with_a_link_into_the_repository_is_refused(text, refused):
    with pytest.raises(SystemExit, match="docs/") if refused else contextlib.nullcontext():
        CHECK["check_links"](text)


def test_description_is_the_readme_without_links_into_the_repository():
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / hook["fragments"][0]["path"]).read_text(encoding="utf-8")
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    CHECK["check_links"](text)
    assert "Methods and schedules has a figure" in text


def test_wheel_has_the_choices_in_the_package():
    assert CHECK["wheel_files"](["pipetrain/cli.py", "conf/config.yaml"]) == {
        "pipetrain/cli.py", "pipetrain/conf/config.yaml",
    }  # fmt: skip


def test_distributions_have_no_presets_of_papers():
    packed = PYPROJECT["tool"]["hatch"]["build"]["targets"]
    assert not [path for path in packed["sdist"]["include"] if path.startswith("/papers")]
    assert packed["wheel"]["packages"] == ["pipetrain"]
    assert sorted(path.stem for path in (ROOT / "conf" / "experiment").rglob("*.yaml")) == [
        "comparison", "demo", "multi30k",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (["pipetrain/cli.py", "tests/test_cli.py"], r"p.whl: missing \[\], stray \['tests/test_cli.py'\]"),
        ([], r"p.whl: missing \['pipetrain/cli.py'\], stray \[\]"),
    ],
)
def test_file_missing_or_too_many_is_named(found, reason):
    with pytest.raises(SystemExit, match=reason):
        CHECK["compare"](Path("dist/p.whl"), {"pipetrain/cli.py"}, found)
    CHECK["compare"](Path("dist/p.whl"), {"pipetrain/cli.py"}, ["pipetrain/cli.py"])
