"""Vocabularies of subwords or words: trained on text once, then read from a cache."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.data.cache import cached_file, write_cached
from pipetrain.errors import ConfigError, check_whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING, BEGINNING, END, UNKNOWN = range(4)
MARKS = ("<pad>", "<s>", "</s>", "<unk>")
"""The tokens of these ids, in every vocabulary."""
KINDS = ("bpe", "words")

Lines = Callable[[], Iterable[str]]
"""Reads lines of text, from the first at each call."""

_LEAST = len(MARKS) + 256  # tokens of byte-level BPE: there is no text that it cannot write
_CHUNK = 10_000  # lines encoded at once


class Vocabulary:
    """The tokens that text is made of, and their ids."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        tokenizer.encode_special_tokens = True  # marks that stand in the text are text
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """Tokens, the marks included."""
        return self._tokenizer.get_vocab_size()

    @cached_property
    def sha256(self) -> str:
        """Of all that it consists of: the same for vocabularies that give the same ids."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()

    def encode(self, lines: Iterable[str]) -> Iterator[list[int]]:
        """The ids of each line, without marks."""
        waiting = iter(lines)
        while chunk := list(islice(waiting, _CHUNK)):
            yield from (encoding.ids for encoding in self._tokenizer.encode_batch_fast(chunk, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids; marks are left out, but for unknown words."""
        return self._tokenizer.decode(
            [i for i in ids if i == UNKNOWN or i >= len(MARKS)], skip_special_tokens=False
        ).strip()


def vocabulary_of(lines: Lines, kind: str, size: int | None) -> Vocabulary:
    """The vocabulary of a text, from the cache if it has been trained before.

    The name of a cached vocabulary is made of the text and these settings.

    Args:
        lines: the text.
        kind: `bpe` for subwords over bytes, which can write any text (Sennrich et al. 2016; Radford et al. 2019), or
            `words`, as white space separates them.
        size: tokens at most, the marks included; None for all words.

    Raises:
        ConfigError: a setting is out of its range.
    """
    _check(kind, size)
    digest = hashlib.sha256(f"{kind} {size}\n".encode())
    for line in lines():
        digest.update(line.encode() + b"\n")
    path = cached_file(f"vocabulary-{digest.hexdigest()[:32]}.json")
    tokenizer = _read(path)
    if tokenizer is None:
        tokenizer = _trained(lines(), kind, size)
        text = tokenizer.to_str().encode()
        write_cached(path, lambda file: file.write(text))
    return Vocabulary(tokenizer)


def _check(kind: str, size: int | None) -> None:
    if kind not in KINDS:
        raise ConfigError(f"dataset.tokens={kind}: one of {', '.join(KINDS)}")
    if kind == "bpe" or size is not None:
        least = _LEAST if kind == "bpe" else len(MARKS) + 1
        otherwise = "" if kind == "bpe" else "or null for all words"
        check_whole("dataset.vocabulary_size", size, least=least, otherwise=otherwise)


def _trained(lines: Iterable[str], kind: str, size: int | None) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not outlive a fork, of which it warns
    options: dict[str, Any] = {"special_tokens": list(MARKS), "show_progress": False}
    if kind == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=MARKS[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=size or 2**31, **options))
        return tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a set: its order is another in each process
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=size or _LEAST, initial_alphabet=alphabet, **options)
    )
    return tokenizer


def _read(path: Path) -> "Tokenizer | None":
    """None where there is none, or one that cannot be used."""
    from tokenizers import Tokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception:  # the library raises no narrower one for a damaged file
        return None
