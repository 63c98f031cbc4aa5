"""Byte-pair encoding of running text, learned once from it."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from typing_extensions import override

# a process that has encoded in threads of its own and is then forked warns, and the workers of a loader are forked
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipetrain.data.cache import cached_file, write_cached
from pipetrain.data.text.vocabulary import Ids, Vocabulary, digest
from pipetrain.errors import ConfigError, check_whole, one_line

BYTES = 256
"""Tokens that any text can be written with."""
_LINES = 1000


class BytePairVocabulary(Vocabulary):
    """Byte-level byte-pair encoding, which can write any text (Sennrich et al. 2016; Radford et al. 2019).

    Args:
        tokenizer: of the `tokenizers` library.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def learned(cls, text: str, size: int | None) -> "BytePairVocabulary":
        """That of at most `size` tokens, from the cache if it has been learned before.

        A text with fewer pairs that repeat has fewer tokens.

        Raises:
            ConfigError: `size` is too small for all bytes.
        """
        check_whole("dataset.vocabulary_size", size, least=BYTES)
        path = cached_file(f"byte-pairs-{size}-{digest([tokenizers.__version__, str(size), text])[:32]}.json")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception:  # the library raises nothing narrower where there is none, or a damaged one
            tokenizer = _trained(text, size or BYTES)
            content = tokenizer.to_str().encode()
            write_cached(path, lambda file: file.write(content))
            return cls(tokenizer)

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


def _trained(text: str, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_parts(text), trainer)
    return tokenizer


def _parts(text: str) -> Iterator[str]:
    """Some lines at a time: a whole book at once takes a hundred times its size."""
    lines = text.splitlines(keepends=True)
    for start in range(0, len(lines), _LINES):
        yield "".join(lines[start : start + _LINES])
