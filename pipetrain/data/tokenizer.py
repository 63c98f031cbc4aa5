"""Tokenizers of the `tokenizers` library: learned from text, and read from files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

# a process that has encoded in threads of its own and is then forked warns, and the workers of a loader are forked
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipetrain.data.cache import write_cached

BYTES = 256
"""Tokens of byte pairs with which any text can be written."""


def byte_pairs(texts: Iterable[str], size: int, marks: Sequence[str] = (), *, blank_before: bool = False) -> Tokenizer:
    """Byte-level byte-pair encoding, which can write any text (Sennrich et al. 2016; Radford et al. 2019).

    Args:
        texts: to learn from.
        size: tokens at most, the marks included.
        marks: the first tokens, which no text has.
        blank_before: whether a text's first word is encoded as one in its middle.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank_before)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a set: its order is another in each process
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(marks), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def words(texts: Iterable[str], size: int | None, least: int, marks: Sequence[str], unknown: str) -> Tokenizer:
    """The words between white space, the frequent ones first, equally frequent ones in the order of the alphabet.

    Args:
        texts: to learn from.
        size: tokens at most, the marks included; None for all words.
        least: how often a word must occur.
        marks: the first tokens, which no text has.
        unknown: the one that stands for all other words.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size or 2**31, min_frequency=least, special_tokens=list(marks), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def cached(path: Path) -> Tokenizer | None:
    """The tokenizer in a file; None where there is none, or one that cannot be used."""
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception:  # the library raises no narrower one for a damaged file
        return None


def keep(tokenizer: Tokenizer, path: Path) -> None:
    """Writes the tokenizer to a file of the cache."""
    content = tokenizer.to_str().encode()
    write_cached(path, lambda file: file.write(content))
