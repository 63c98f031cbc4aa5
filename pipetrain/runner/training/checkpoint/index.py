"""index.json of a checkpoint: the names of the tensors in each file, so that a process opens only those it needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.files import strict_json
from pipetrain.engine.stage.saved_state import TensorName
from pipetrain.runner.training.checkpoint import manifest, tensor_file

NAME = "index.json"


def tensors_of_files(folder: Path) -> dict[str, list[str]] | None:
    """Name of each file of tensors -> their names; None if the checkpoint, of an earlier version, has no index.

    Raises:
        ValueError: the index holds something else.
    """
    if not (folder / NAME).is_file():
        return None
    listed = strict_json.read(folder / NAME)
    if not isinstance(listed, dict) or not all(map(_is_list_of_names, listed.values())):
        raise ValueError("it lists no tensors")
    return listed


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def places(folder: Path) -> dict[TensorName, Path]:
    """Name of each tensor -> its file, file by file. Without an index, all files of tensors are opened.

    Raises:
        ConfigError: there is something else in them.
    """
    listed: Mapping[str, Sequence[str]] | None = tensors_of_files(folder)
    if listed is None:
        files = (folder / entry.name for entry in manifest.entries(folder))
        listed = {path.name: tensor_file.names(path) for path in files if path.suffix == tensor_file.SUFFIX}
    found: dict[TensorName, Path] = {}
    for file, names in listed.items():
        try:
            found.update({TensorName.parse(name): folder / file for name in names})
        except ValueError as error:
            raise ConfigError(f"{folder / file}: holds tensors that no checkpoint has: {error}") from error
    return found
