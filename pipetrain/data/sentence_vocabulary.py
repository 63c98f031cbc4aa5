"""Vocabularies of sentences, in subwords or words: learned once, then read from a cache."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from tokenizers import Tokenizer

from pipetrain.data import tokenizer
from pipetrain.data.cache import cached_file
from pipetrain.errors import ConfigError, check_whole

PADDING, BEGINNING, END, UNKNOWN = range(4)
MARKS = ("<pad>", "<s>", "</s>", "<unk>")
"""The tokens of these ids, in every vocabulary."""
KINDS = ("bpe", "words")

Lines = Callable[[], Iterable[str]]
"""Reads lines of text, from the first at each call."""

_LEAST = len(MARKS) + tokenizer.BYTES
_CHUNK = 10_000  # lines encoded at once


class SentenceVocabulary:
    """The tokens that sentences are made of, and their ids; those of running text are a `text.vocabulary.Vocabulary`.

    Args:
        learned: of the `tokenizers` library, with the marks as its first tokens.
    """

    def __init__(self, learned: Tokenizer) -> None:
        learned.encode_special_tokens = True  # marks that stand in the text are text
        self._tokenizer = learned

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


def vocabulary_of(lines: Lines, kind: str, size: int | None, least: int = 1) -> SentenceVocabulary:
    """The vocabulary of some sentences, from the cache if it has been learned before.

    The name of a cached vocabulary is made of the sentences and these settings.

    Args:
        lines: the sentences.
        kind: `bpe` for subwords over bytes, which can write any text, or `words`, as white space separates them.
        size: tokens at most, the marks included; None for all words.
        least: how often a word must occur; a rarer one is unknown.

    Raises:
        ConfigError: a setting is out of its range.
    """
    _check(kind, size)
    digest = hashlib.sha256(f"{kind} {size} {least}\n".encode())
    for line in lines():
        digest.update(line.encode() + b"\n")
    path = cached_file(f"vocabulary-{digest.hexdigest()[:32]}.json")
    learned = tokenizer.cached(path)
    if learned is None:
        if kind == "words":
            learned = tokenizer.words(lines(), size, least, MARKS, MARKS[UNKNOWN])
        else:
            learned = tokenizer.byte_pairs(lines(), size or _LEAST, MARKS, blank_before=True)
        tokenizer.keep(learned, path)
    return SentenceVocabulary(learned)


def _check(kind: str, size: int | None) -> None:
    if kind not in KINDS:
        raise ConfigError(f"dataset.tokens={kind}: one of {', '.join(KINDS)}")
    if kind == "bpe" or size is not None:
        least = _LEAST if kind == "bpe" else len(MARKS) + 1
        otherwise = "" if kind == "bpe" else "or null for all words"
        check_whole("dataset.vocabulary_size", size, least=least, otherwise=otherwise)
