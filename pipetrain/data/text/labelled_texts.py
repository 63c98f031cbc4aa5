"""Texts with a class each, as token ids, in minibatches of texts that are about equally long."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pipetrain.data.length_buckets import bucketed
from pipetrain.data.vocabulary import PADDING, SentenceVocabulary
from pipetrain.errors import check_whole
from pipetrain.number_range import NumberRange
from pipetrain.seeding import key

_SHARE = NumberRange(0, 1, least_too=False)
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Examples:
    """Texts, and the number of the class of each."""

    texts: Sequence[str]
    labels: Sequence[int]

    def divided(self, share: float) -> tuple["Examples", "Examples"]:
        """Those to train on, and a `share` to evaluate on, both mixed: data often stand class by class.

        Raises:
            ConfigError: the share is not between 0 and 1.
        """
        _SHARE.check("dataset.eval_share", share)
        mixed = self.mixed()
        held_out = max(1, round(share * len(self.texts)))
        return mixed._of(slice(held_out, None)), mixed._of(slice(held_out))

    def mixed(self) -> "Examples":
        """The same in another order, which is always the same."""
        generator = torch.Generator().manual_seed(key(len(self.texts)))
        order: list[int] = torch.randperm(len(self.texts), generator=generator).tolist()
        return Examples([self.texts[index] for index in order], [self.labels[index] for index in order])

    def _of(self, part: slice) -> "Examples":
        return Examples(self.texts[part], self.labels[part])


@dataclass(frozen=True)
class Pieces:
    """What texts are cut into.

    Attributes:
        kind: `words`, in lower case, with punctuation marks of their own; or `bpe`, subwords.
        vocabulary_size: different ones at most; None: all words.
        max_length: of a text at most; what follows is cut off.

    Raises:
        ConfigError: the length is below 1.
    """

    kind: str
    vocabulary_size: int | None
    max_length: int

    def __post_init__(self) -> None:
        check_whole("dataset.max_length", self.max_length, least=1)

    def vocabulary(self, texts: Sequence[str]) -> SentenceVocabulary:
        """The vocabulary of these texts.

        Raises:
            ConfigError: there is no such kind, or its size is out of range.
        """
        return SentenceVocabulary.learned(lambda: map(self._apart, texts), self.kind, self.vocabulary_size)

    def ids(self, texts: Sequence[str], vocabulary: SentenceVocabulary) -> Iterator[Sequence[int]]:
        """The ids of each text."""
        return (ids[: self.max_length] for ids in vocabulary.encode_lines(map(self._apart, texts)))

    def _apart(self, text: str) -> str:
        return " ".join(_WORD.findall(text.lower()) if self.kind == "words" else text.split())


class LabelledTexts:
    """One split: sample i is its ids, int64 (positions,), and its class, an int64 scalar.

    Args:
        ids: of each text.
        labels: the class of each.
    """

    def __init__(self, ids: Iterable[Sequence[int]], labels: Sequence[int]) -> None:
        self.ids = [torch.tensor(each, dtype=torch.int32) for each in ids]
        self.targets = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.ids[index].long(), self.targets[index]

    def target(self, index: int) -> Tensor:
        """The class of sample `index`, an int64 scalar."""
        return self.targets[index]

    def batches(self, batch_size: int, samples: int) -> list[list[int]]:
        """Minibatches of the first `samples` texts, of about the same length in each."""
        return bucketed([(len(ids),) for ids in self.ids[:samples]], batch_size)

    def collate(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Ids (n, positions), the shorter texts padded, and classes (n,)."""
        ids = pad_sequence([ids for ids, _ in pairs], batch_first=True, padding_value=PADDING)
        return ids, torch.stack([label for _, label in pairs])


@dataclass(frozen=True)
class TextClasses:
    """Texts to classify.

    Attributes:
        classes: their names.
        vocabulary_size: different tokens.
        padding: the id that fills up short texts.
        max_length: tokens of a text at most.
        vocabulary: what the tokens mean.
    """

    train: LabelledTexts
    eval: LabelledTexts
    classes: Sequence[str]
    vocabulary_size: int
    max_length: int
    vocabulary: SentenceVocabulary
    padding: int = PADDING

    @property
    def vocabulary_sha256(self) -> str:
        """What tells its vocabulary from others."""
        return self.vocabulary.sha256


def text_classes(train: Examples, evaluation: Examples, classes: Sequence[str], pieces: Pieces) -> TextClasses:
    """The data set of these examples; its vocabulary is that of the training texts.

    Raises:
        ConfigError: a setting of the pieces is wrong.
    """
    vocabulary = pieces.vocabulary(train.texts)
    splits = [LabelledTexts(pieces.ids(part.texts, vocabulary), part.labels) for part in (train, evaluation)]
    return TextClasses(splits[0], splits[1], classes, vocabulary.size, pieces.max_length, vocabulary)
