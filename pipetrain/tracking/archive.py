"""Setting an earlier run's files aside, so that a later one neither destroys them nor is taken for its continuation."""

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.tracking import strict_json
from pipetrain.tracking.files import sync, write_whole

_PREFIX = "earlier-"
_PARTIAL = ".partial"
_MOVES = "moving.json"
_NAME = re.compile(rf"{_PREFIX}\d+({re.escape(_PARTIAL)})?")


def is_archive(folder: Path) -> bool:
    """True if a folder has the name of an archive of an earlier run."""
    return _NAME.fullmatch(folder.name) is not None


def archive_files(folder: Path, names: Iterable[str]) -> Path | None:
    """Moves those of the named files that exist into a new folder `earlier-N`; None if there are none.

    The folder has another name until all are in it, and holds the list of them. So `complete` can finish what a kill
    interrupted.
    """
    present = [name for name in names if (folder / name).exists()]
    if not present:
        return None
    partial = _free_name(folder)
    partial.mkdir()
    write_whole(partial / _MOVES, json.dumps(present))
    return _finish(partial)


def finish_archiving(folder: Path) -> None:
    """Finishes what was killed while it set files of `folder` aside."""
    for partial in sorted(folder.glob(f"{_PREFIX}*{_PARTIAL}")):
        (partial / (_MOVES + _PARTIAL)).unlink(missing_ok=True)
        if any(partial.iterdir()):
            _finish(partial)
        else:  # killed before its list was there
            partial.rmdir()


def _finish(partial: Path) -> Path:
    folder, moves = partial.parent, partial / _MOVES
    # without the list all are in it, and only the name is left to change
    for name in _listed(moves) if moves.exists() else ():
        if (folder / name).exists() and not (partial / name).exists():
            (partial / name).parent.mkdir(exist_ok=True)
            (folder / name).rename(partial / name)
    moves.unlink(missing_ok=True)
    aside = partial.with_suffix("")
    partial.rename(aside)
    sync(folder)
    return aside


def _listed(moves: Path) -> list[str]:
    """Names of the files to move; the list may be untrusted.

    Raises:
        ConfigError: it names what is in no run directory.
    """
    try:
        names = strict_json.loads(moves.read_text(encoding="utf-8"))
        if all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in names):
            return [*names]
    except (ValueError, TypeError):
        pass
    raise ConfigError(f"{moves}: damaged: it does not list files of this directory; remove {moves.parent}")


def _free_name(folder: Path) -> Path:
    """The next `earlier-N`, under the name it has until all is in it."""
    numbered = (folder / f"{_PREFIX}{number}" for number in itertools.count(1))
    aside = next(each for each in numbered if not (each.exists() or each.is_symlink()))
    return aside.with_name(aside.name + _PARTIAL)
