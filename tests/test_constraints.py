"""The files of pinned versions agree with what pyproject.toml allows."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for extra, lines in OPTIONAL.items() if extra not in ("test", "dev") for line in lines]
# SQLAlchemy 1.4.0 has no wheel
LOWEST = [requirement for requirement in (*DEPENDENCIES, *EXTRAS) if requirement.name != "sqlalchemy"]


def pinned(file):
    """Name -> version."""
    pins = (line.split("==") for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    return {name.lower(): Version(version) for name, version in pins}


def lower_bound(requirement):
    (bound,) = (Version(each.version) for each in requirement.specifier if each.operator == ">=")
    return bound


@pytest.mark.parametrize("requirement", LOWEST, ids=lambda requirement: requirement.name)
def test_lower_constraints_pin_lowest_allowed_versions(requirement):
    assert pinned("constraints-lower.txt")[requirement.name] == lower_bound(requirement)


@pytest.mark.parametrize("requirement", [*DEPENDENCIES, *EXTRAS], ids=lambda requirement: requirement.name)
def test_tested_constraints_pin_a_version_that_is_allowed(requirement):
    assert pinned("constraints.txt")[requirement.name] in requirement.specifier


def test_tests_run_with_every_extra():
    installed = {str(Requirement(line)) for line in (*OPTIONAL["test"], *OPTIONAL["dev"])}
    assert {str(requirement) for requirement in EXTRAS} <= installed
