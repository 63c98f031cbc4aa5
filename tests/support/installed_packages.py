"""Packages with choices, installed in a folder of their own as pip does it, but without a build."""

from collections.abc import Mapping
from pathlib import Path

from pipetrain.runner.config.installed import ENTRY_POINTS


def install(site: Path, package: str, files: Mapping[str, str], folder: str = "conf", code: str = "") -> Path:
    """The folder of choices of a package whose module, of the same name, has this code; `site` is on Python's path."""
    home = site / package
    for name, text in files.items():
        path = home / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    home.mkdir(exist_ok=True, parents=True)
    (home / "__init__.py").write_text(code)
    info = site / f"{package}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{package} = {package}.{folder}\n")
    return home / "conf"
