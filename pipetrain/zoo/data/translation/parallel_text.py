"""Translation data from parallel text: pairs of files, plain or .gz, whose lines translate each other."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pipetrain.data.files.regular_file import opened
from pipetrain.engine.errors import ConfigError
from pipetrain.zoo.data.translation.dataset import TranslationDataset

_LANGUAGE = "LANG"


@dataclass(frozen=True)
class ParallelFiles:
    """One split: pairs of a source and a target file, read in sequence."""

    pairs: tuple[tuple[Path, Path], ...]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The lines (source, target), without white space at their ends.

        Raises:
            ConfigError: a file cannot be read, or the files of a pair differ in their number of lines.
        """
        for source, target in self.pairs:
            for number, (one, other) in enumerate(zip_longest(_lines(source), _lines(target))):
                if one is None or other is None:
                    longer, shorter = (target, source) if one is None else (source, target)
                    raise ConfigError(
                        f"dataset: {shorter} has {number} lines and {longer} more; each line must translate the "
                        "one of the other file"
                    )
                yield one, other


def parallel_files(
    root: str, languages: tuple[str, str], setting: str, names: str | Sequence[str], origin: str | None = None
) -> ParallelFiles:
    """The files that the setting of a split names.

    `names` are what precedes the language in file names, such as `train` of train.de and train.en; a name with LANG for
    the language, such as `LANG/train.txt`; or several of these.

    Raises:
        ConfigError: a file is missing, or this is no name.
    """

    def file(name: str, language: str) -> Path:
        path = Path(root).expanduser().absolute() / (
            name.replace(_LANGUAGE, language) if _LANGUAGE in name else f"{name}.{language}"
        )
        for candidate in (path, path.with_name(f"{path.name}.gz")):
            if candidate.is_file():
                return candidate
        obtain = f"it comes from {origin}" if origin else f"put it there, or name others with {setting}"
        raise ConfigError(f"dataset.root={root} {setting}={name}: no file {path} (or {path.name}.gz); {obtain}")

    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(name, str) for name in listed):
        raise ConfigError(
            f"{setting}={names}: must be a name such as `train`, for the files train.de and train.en, or a list"
        )
    source, target = languages
    return ParallelFiles(tuple((file(name, source), file(name, target)) for name in listed))


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with opened(path) as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
            for line in stream:
                number += 1
                yield line.decode().removeprefix("\ufeff").strip()  # a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"dataset: line {number} of {path} is not in UTF-8: {error.reason}") from error
    except (EOFError, zlib.error, OSError) as error:
        raise ConfigError(f"dataset: {path} cannot be read after line {number}: {error}") from error


def parallel_text(  # noqa: PLR0913  (one for each setting of the choice)
    root: str = "data",
    source: str = "de",
    target: str = "en",
    train: str | Sequence[str] = "train",
    eval: str | Sequence[str] = "val",
    tokens: str = "bpe",
    vocabulary_size: int | None = 8000,
    bpe_mark: str | None = None,
    max_length: int | None = 256,
    batch_tokens: int | None = 4096,
    origin: str | None = None,
    *,
    joint: bool = False,
) -> TranslationDataset:
    """Pairs of files in `root` whose lines translate each other, such as train.de and train.en, plain or .gz, in UTF-8.

    `train` and `eval` are what precedes the language in their names, or a name with LANG for the language; several are
    read one after the other. `origin` is named in the error if a file is missing.

    Raises:
        ConfigError: files are missing, cannot be read or do not match; or a setting is out of its range.
    """
    languages = source, target
    return TranslationDataset(
        parallel_files(root, languages, "dataset.train", train, origin),
        parallel_files(root, languages, "dataset.eval", eval, origin),
        tokens=tokens,
        vocabulary_size=vocabulary_size,
        joint=joint,
        bpe_mark=bpe_mark,
        max_length=max_length,
        batch_tokens=batch_tokens,
    )
