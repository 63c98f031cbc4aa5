"""Token ids in files of 16-bit numbers, as nanoGPT's scripts write them: train.bin and val.bin."""

from pathlib import Path
from typing import Any

import numpy as np

from pipetrain.data.files import strict_json
from pipetrain.engine.errors import ConfigError, check_whole, is_whole, one_line
from pipetrain.zoo.data.text.language import CarriedWindows, LanguageData, Windows
from pipetrain.zoo.data.vocabulary import CharacterVocabulary, TokenizerVocabulary, Vocabulary


def token_files(
    root: str = "data",
    vocabulary_size: int | None = None,
    tokenizer: str | None = None,
    positions: int = 128,
    *,
    carried: bool = False,
) -> LanguageData:
    """Windows of train.bin and val.bin, which stay on the disk.

    The size of the vocabulary comes from the setting, the tokenizer, or `vocab_size` in meta.json, a file that
    may also have the characters as `itos`. meta.pkl is not read: unpickling runs what it holds.

    Raises:
        ConfigError: a file is missing or damaged, the vocabulary is unknown, or an id is not in it.
    """
    folder = Path(root).expanduser()
    paths = [folder / f"{name}.bin" for name in ("train", "val")]
    for path in paths:
        if not path.is_file():
            raise ConfigError(
                f"dataset.root={root}: there is no file {path.absolute()}; put train.bin and val.bin there, 16-bit "
                "token ids as nanoGPT's data/*/prepare.py write them"
            )
        if path.stat().st_size % 2 or not path.stat().st_size:
            raise ConfigError(f"dataset.root={root}: {path} has {path.stat().st_size} bytes, not two for each token")
    vocabulary = _vocabulary(folder, tokenizer)
    size = _size(folder, vocabulary_size, vocabulary)
    windows = CarriedWindows if carried else Windows
    train, evaluation = (windows(np.memmap(path, dtype="<u2", mode="r"), size, positions, str(path)) for path in paths)
    return LanguageData(train, evaluation, size, positions, vocabulary)


def _vocabulary(folder: Path, tokenizer: str | None) -> Vocabulary | None:
    if tokenizer is not None:
        return TokenizerVocabulary.read(Path(tokenizer).expanduser(), f"dataset.tokenizer={tokenizer}")
    characters = _meta(folder).get("itos")
    if isinstance(characters, dict):
        characters = [characters.get(str(i), "") for i in range(len(characters))]
    if not isinstance(characters, list) or not all(isinstance(each, str) and len(each) == 1 for each in characters):
        return None
    return CharacterVocabulary("".join(characters))


def _size(folder: Path, given: int | None, vocabulary: Vocabulary | None) -> int:
    if given is not None:
        check_whole("dataset.vocabulary_size", given, least=1)
        return given
    size = vocabulary.size if vocabulary is not None else _meta(folder).get("vocab_size")
    if not is_whole(size):
        pickled = "; meta.pkl is not read, as unpickling runs what it holds" if (folder / "meta.pkl").is_file() else ""
        raise ConfigError(
            f"dataset.vocabulary_size is not set, and there is no meta.json with vocab_size in {folder.absolute()}"
            f"{pickled}; for GPT-2's tokens set dataset.vocabulary_size=50257"
        )
    return size


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    if not path.is_file():
        return {}
    try:
        content = strict_json.read(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"dataset.root={folder}: {path} is damaged: {one_line(error)}") from error
    return content if isinstance(content, dict) else {}
