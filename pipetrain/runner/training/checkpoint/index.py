"""index.json of a checkpoint: the names of the tensors in each file, so that a process opens only those it needs."""

from pathlib import Path

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.files import strict_json
from pipetrain.engine.stage.saved_state import TensorName

NAME = "index.json"


def tensors_of_files(folder: Path) -> dict[str, list[str]]:
    """Name of each file of tensors -> their names.

    Raises:
        ValueError: the index holds something else.
        OSError: there is none.
    """
    listed = strict_json.read(folder / NAME)
    if not isinstance(listed, dict) or not all(map(_is_list_of_names, listed.values())):
        raise ValueError("it lists no tensors")
    return listed


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def places(folder: Path) -> dict[TensorName, Path]:
    """Name of each tensor -> its file, file by file.

    Raises:
        ConfigError: a name is not that of a tensor of a checkpoint.
    """
    found: dict[TensorName, Path] = {}
    for file, names in tensors_of_files(folder).items():
        try:
            found.update({TensorName.parse(name): folder / file for name in names})
        except ValueError as error:
            raise ConfigError(f"{folder / file}: holds tensors that no checkpoint has: {error}") from error
    return found
