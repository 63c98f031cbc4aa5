"""Translation data from parallel text: pairs of files, plain or .gz, whose lines translate each other."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pipetrain.data.translation.dataset import TokenSettings, TranslationDataset
from pipetrain.errors import ConfigError

_LANGUAGE = "LANG"


@dataclass(frozen=True)
class ParallelFiles:
    """One split: pairs of files, read one pair after the other.

    Attributes:
        pairs: (source file, target file) each.
    """

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
                        f"dataset: {shorter} has {number} lines and {longer} more; line by line they must translate "
                        "each other"
                    )
                yield one, other


@dataclass(frozen=True)
class Corpus:
    """A folder of parallel text.

    Attributes:
        root: the folder, as configured.
        languages: source and target, as file names have them.
        origin: where the files come from; None if unknown.
    """

    root: str
    languages: tuple[str, str]
    origin: str | None = None

    def split(self, setting: str, names: str | Sequence[str]) -> ParallelFiles:
        """The files that the setting of a split names.

        Args:
            setting: such as `dataset.train`.
            names: what stands before the language in file names, such as `train` of train.de and train.en; a name with
                LANG for the language, such as `LANG/train.txt`; or several of these.

        Raises:
            ConfigError: a file is missing, or this is no name.
        """
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, Sequence) or not listed or not all(isinstance(name, str) for name in listed):
            raise ConfigError(
                f"{setting}={names}: a name such as `train`, of the files train.de and train.en, or a list"
            )
        source, target = self.languages
        return ParallelFiles(
            tuple((self._file(setting, name, source), self._file(setting, name, target)) for name in listed)
        )

    def _file(self, setting: str, name: str, language: str) -> Path:
        file = name.replace(_LANGUAGE, language) if _LANGUAGE in name else f"{name}.{language}"
        path = Path(self.root).expanduser().absolute() / file
        for candidate in (path, path.with_name(f"{path.name}.gz")):
            if candidate.is_file():
                return candidate
        obtain = f"it comes from {self.origin}" if self.origin else f"put it there, or name others with {setting}"
        raise ConfigError(f"dataset.root={self.root} {setting}={name}: no file {path} (or {path.name}.gz); {obtain}")


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for line in stream:
                number += 1
                yield line.decode().removeprefix("\ufeff").strip()  # a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"dataset: line {number} of {path} is not in UTF-8: {error.reason}") from error
    except (EOFError, zlib.error, OSError) as error:
        raise ConfigError(f"dataset: {path} cannot be read behind line {number}: {error}") from error


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

    `train` and `eval` are what stands before the language in their names, or a name with LANG for the language; several
    are read one after the other. The other options are those of `TokenSettings`; `origin` is named in the
    error if a file is missing.

    Raises:
        ConfigError: files are missing, cannot be read or do not match; or a setting is out of its range.
    """
    settings = TokenSettings(tokens, vocabulary_size, joint, bpe_mark, max_length, batch_tokens)
    corpus = Corpus(root, (source, target), origin)
    return TranslationDataset(corpus.split("dataset.train", train), corpus.split("dataset.eval", eval), settings)
