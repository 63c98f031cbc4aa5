"""The words of captions as token ids, and back."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from pipetrain.decoding import Marks

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
MARKS = Marks(padding=0, beginning=1, end=2)
UNKNOWN = 3
_SPECIAL = 4


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


class WordList:
    """The words of some texts, the frequent ones first; equally frequent ones in the order of the alphabet.

    Args:
        texts: to take words from.
        least: how often a word must occur; a rarer one is unknown.
    """

    def __init__(self, texts: Iterable[str], least: int = 1) -> None:
        counts = Counter(word for text in texts for word in words_of(text))
        frequent = [word for word, count in counts.items() if count >= least]
        self._words = sorted(frequent, key=lambda word: (-counts[word], word))
        self._ids = {word: id_ for id_, word in enumerate(self._words, start=_SPECIAL)}

    def __len__(self) -> int:
        """The number of ids, marks and the unknown word included."""
        return _SPECIAL + len(self._words)

    def ids(self, text: str) -> list[int]:
        """The ids of the words of a text."""
        return [self._ids.get(word, UNKNOWN) for word in words_of(text)]

    def text(self, ids: Sequence[int]) -> str:
        """The words of some ids, with blanks between them; marks are left out."""
        return " ".join("<unk>" if id_ == UNKNOWN else self._words[id_ - _SPECIAL] for id_ in ids if id_ >= UNKNOWN)
