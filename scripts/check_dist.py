"""Checks the wheel and the sdist in dist/: their files, and that either works where nothing else is installed.

`make dist`. The files are those of the repository that belong there, no less and no more. Both are installed, one after
the other, in an empty virtual environment in a temporary folder, which then does what a user does first.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SDIST_FILES = {
    "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt",
    ".gitignore",  # which the builder adds
}  # fmt: skip
"""What the sdist has of the repository in addition to the package and its choices."""
COMMANDS = (
    "python -c 'import pipetrain.engine'",
    "pipetrain list",
    "pipetrain run experiment=demo model=lenet5 executor=simulated dataset.limit=64 train.epochs=1",
)


def main() -> None:
    """Exits with a message if something is missing, too much, or does not work."""
    (wheel,), (sdist,) = (list((ROOT / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    tracked = _output("git", "ls-files", "pipetrain", "conf").splitlines()
    with zipfile.ZipFile(wheel) as archive:
        compare(wheel, wheel_files(tracked), (name for name in archive.namelist() if ".dist-info/" not in name))
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        check_links(archive.read(metadata).decode())
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        compare(sdist, {*tracked, *SDIST_FILES}, names - {"PKG-INFO"})
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for given in ([wheel, "--constraint", ROOT / "constraints.txt"], [sdist, "--no-deps", "--force-reinstall"]):
            _run(Path(folder), ["pip", "install", "--quiet", *map(str, given)])
            for command in COMMANDS:
                _run(Path(folder), ["sh", "-c", command])
            print(f"{given[0]}: installed, and works", flush=True)


def wheel_files(tracked: Iterable[str]) -> set[str]:
    """Where the wheel has the files of the repository: the choices are in the package."""
    return {f"pipetrain/{path}" if path.startswith("conf/") else path for path in tracked}


def compare(distribution: Path, expected: set[str], found: Iterable[str]) -> None:
    """Checks which files a distribution has.

    Raises:
        SystemExit: some are missing, or too much.
    """
    names = set(found)
    if names != expected:
        raise SystemExit(f"{distribution.name}: missing {sorted(expected - names)}, stray {sorted(names - expected)}")


def check_links(metadata: str) -> None:
    """Checks that the description, which a package index shows, has no links that lead nowhere there.

    Raises:
        SystemExit: a link is relative.
    """
    relative = re.findall(r"\]\((?!https?:)([^)\s]*)\)", metadata)
    if relative:
        raise SystemExit(f"the package's description has links into the repository: {sorted(set(relative))}")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _run(environment: Path, command: list[str]) -> None:
    """Runs a command in a virtual environment, away from the checkout.

    Raises:
        SystemExit: it fails; with its output.
    """
    variables = {**os.environ, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    variables.pop("PYTHONPATH", None)
    done = subprocess.run(
        command,
        cwd=environment,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)}: exit code {done.returncode}")


if __name__ == "__main__":
    main()
