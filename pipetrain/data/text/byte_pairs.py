"""Byte-pair encoding of running text, learned once from it."""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from typing_extensions import override

from pipetrain.data import tokenizer
from pipetrain.data.cache import cached_file, write_cached
from pipetrain.data.text.vocabulary import Ids, Vocabulary, digest
from pipetrain.errors import ConfigError, check_whole, one_line

_LINES = 1000


class BytePairVocabulary(Vocabulary):
    """Byte-level byte-pair encoding, see `tokenizer.byte_pairs`.

    Args:
        learned: of the `tokenizers` library.
    """

    def __init__(self, learned: Tokenizer) -> None:
        self.tokenizer = learned

    @classmethod
    def learned(cls, text: str, size: int | None) -> "BytePairVocabulary":
        """That of at most `size` tokens, from the cache if it has been learned before.

        A text with fewer pairs that repeat has fewer tokens.

        Raises:
            ConfigError: `size` is too small for all bytes.
        """
        check_whole("dataset.vocabulary_size", size, least=tokenizer.BYTES)
        path = cached_file(f"byte-pairs-{size}-{digest([tokenizers.__version__, str(size), text])[:32]}.json")
        learned = tokenizer.cached(path)
        if learned is None:
            learned = tokenizer.byte_pairs(_parts(text), size or tokenizer.BYTES)
            tokenizer.keep(learned, path)
        return cls(learned)

    @classmethod
    def read(cls, path: Path, setting: str) -> "BytePairVocabulary":
        """That of a tokenizer.json, as the `tokenizers` library and models of transformers save it.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        if not path.is_file():
            raise ConfigError(f"{setting}: there is no file {path.absolute()}; name a tokenizer.json")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{setting}: {path} is no tokenizer.json: {one_line(error)}") from error

    @property
    @override
    def size(self) -> int:
        return self.tokenizer.get_vocab_size()

    @override
    def encode(self, text: str) -> Ids:
        parts = self.tokenizer.encode_batch_fast(list(_parts(text)), add_special_tokens=False)
        return np.concatenate([np.empty(0, dtype=np.int32), *(np.array(part.ids, dtype=np.int32) for part in parts)])

    def encode_once(self, text: str) -> Ids:
        """As `encode`, from the cache if the text has been encoded before: a book takes seconds."""
        path = cached_file(f"tokens-{digest([self.sha256, text])[:32]}.npy")
        try:
            cached: Ids = np.load(path, allow_pickle=False)
            return cached
        except (OSError, ValueError, EOFError):  # there is none, or a damaged one
            ids = self.encode(text)
            write_cached(path, lambda file: np.save(file, ids, allow_pickle=False))
            return ids

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @cached_property
    @override
    def sha256(self) -> str:
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()


def _parts(text: str) -> Iterator[str]:
    """Some lines at a time: a whole book at once takes a hundred times its size."""
    lines = text.splitlines(keepends=True)
    for start in range(0, len(lines), _LINES):
        yield "".join(lines[start : start + _LINES])
