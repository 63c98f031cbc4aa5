"""Texts with a class each, in minibatches of about equal length: IMDb's reviews, sentences of Austen's novels."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.data.order import length_buckets, shuffled
from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.zoo.data.text.text_files import EVAL_SHARE, bundled_novels, read_text
from pipetrain.zoo.data.vocabulary import PADDING, SentenceVocabulary, pad

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Examples:
    """Texts, and the number of the class of each."""

    texts: Sequence[str]
    labels: Sequence[int]

    def split(self, share: float) -> tuple["Examples", "Examples"]:
        """Training and evaluation examples, the latter a `share` of all, both shuffled: data are often sorted by class.

        Raises:
            ConfigError: the share is not between 0 and 1.
        """
        EVAL_SHARE.check("dataset.eval_share", share)
        mixed, held_out = self.shuffled(), max(1, round(share * len(self.texts)))
        return (
            Examples(mixed.texts[held_out:], mixed.labels[held_out:]),
            Examples(mixed.texts[:held_out], mixed.labels[:held_out]),
        )

    def shuffled(self) -> "Examples":
        """The examples in a random order, which is always the same."""
        order = shuffled(len(self.texts), len(self.texts))
        return Examples([self.texts[index] for index in order], [self.labels[index] for index in order])


class LabelledTexts:
    """One split: sample i is its ids, int64 (positions,), and its class, an int64 scalar."""

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
        return length_buckets([(len(ids),) for ids in self.ids[:samples]], batch_size)

    def collate(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Ids (n, positions), the shorter texts padded, and classes (n,)."""
        ids = pad(ids for ids, _ in pairs)
        return ids, torch.stack([label for _, label in pairs])


class TextClasses:
    """Texts to classify; the vocabulary comes from the training texts.

    Args:
        classes: their names.
        tokens: `words`, in lower case, with punctuation marks as words; or `bpe`, subwords.
        vocabulary_size: different tokens at most; None: all words.
        max_length: tokens of a text at most; what follows is cut off.

    Raises:
        ConfigError: a setting is out of its range.
    """

    def __init__(
        self,
        train: Examples,
        evaluation: Examples,
        classes: Sequence[str],
        *,
        tokens: str,
        vocabulary_size: int | None,
        max_length: int,
    ) -> None:
        def separated(texts: Sequence[str]) -> Iterator[str]:
            return (" ".join(_WORD.findall(text.lower()) if tokens == "words" else text.split()) for text in texts)

        check_whole("dataset.max_length", max_length, least=1)
        self.vocabulary = SentenceVocabulary.learned(lambda: separated(train.texts), tokens, vocabulary_size)
        self.train, self.eval = (
            LabelledTexts(
                (ids[:max_length] for ids in self.vocabulary.encode_lines(separated(part.texts))), part.labels
            )
            for part in (train, evaluation)
        )
        self.classes = classes
        self.vocabulary_size = self.vocabulary.size
        self.vocabulary_sha256 = self.vocabulary.sha256
        self.max_length = max_length
        self.padding = PADDING


_IMDB_CLASSES = ("neg", "pos")
_LINE_BREAK = "<br />"
_REVIEWS = (
    "unpack aclImdb_v1.tar.gz, the Large Movie Review Dataset of ai.stanford.edu, and name the folder that holds "
    "aclImdb"
)


def imdb(
    root: str = "data", tokens: str = "words", vocabulary_size: int | None = 25_000, max_length: int = 256
) -> TextClasses:
    """The reviews in `root`/aclImdb/{train,test}/{neg,pos}/*.txt, one a file; `root` may be aclImdb itself.

    Raises:
        ConfigError: a folder is missing or empty, or a file holds no text.
    """
    base = Path(root).expanduser().absolute()
    base = base if (base / "train").is_dir() else base / "aclImdb"
    train, test = (_imdb_split(base / name, root) for name in ("train", "test"))
    return TextClasses(
        train, test, _IMDB_CLASSES, tokens=tokens, vocabulary_size=vocabulary_size, max_length=max_length
    )


def _imdb_split(folder: Path, root: str) -> Examples:
    texts: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(_IMDB_CLASSES):
        paths = sorted((folder / name).glob("*.txt"))
        if not paths:
            raise ConfigError(f"dataset.root={root}: no reviews in {folder / name}; {_REVIEWS}")
        texts += (read_text(path, f"dataset.root={root}", _REVIEWS).replace(_LINE_BREAK, " ").strip() for path in paths)
        labels += [label] * len(paths)
    return Examples(texts, labels).shuffled()


_NOVELS = {
    "EMMA": "Emma",
    "MANSFIELD PARK": "Mansfield Park",
    "NORTHANGER ABBEY": "Northanger Abbey",
    "Persuasion": "Persuasion",
    "PRIDE AND PREJUDICE": "Pride and Prejudice",
    "SENSE AND SENSIBILITY": "Sense and Sensibility",
}
"""The first line of each novel, in the order of the file, and its name."""
_SHORTEST = 30
"""Characters of a sentence; what is shorter are headings and exclamations, which are of no novel."""
_BETWEEN_SENTENCES = re.compile(r"""(?<=[.!?]["')])\s+(?=["'(]?[A-Z])|(?<=[.!?])\s+(?=["'(]?[A-Z])""")
_TITLE = re.compile(r"\b(Mr|Mrs|Dr|St)\.\s+")


def austen_novels(
    eval_share: float = 0.1, tokens: str = "words", vocabulary_size: int | None = 8000, max_length: int = 48
) -> TextClasses:
    """The sentences of the six novels, each of the class of its novel.

    Raises:
        ConfigError: a setting is out of its range.
    """
    novels = list(_NOVELS.values())
    pairs = [(sentence, label) for label, novel in enumerate(_novels()) for sentence in sentences(novel)]
    texts, labels = zip(*pairs, strict=True)
    train, evaluation = Examples(texts, labels).split(eval_share)
    return TextClasses(train, evaluation, novels, tokens=tokens, vocabulary_size=vocabulary_size, max_length=max_length)


def _novels() -> list[str]:
    """The text of each novel."""
    lines = bundled_novels().splitlines()
    starts = [lines.index(title) for title in _NOVELS]
    ends = [*starts[1:], len(lines)]
    return ["\n".join(lines[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text whose paragraphs are apart by empty lines, without line breaks and very short ones."""
    for paragraph in re.split(r"\n\s*\n", text):
        line = _TITLE.sub(r"\1 ", " ".join(paragraph.split()))
        yield from (sentence for sentence in _BETWEEN_SENTENCES.split(line) if len(sentence) >= _SHORTEST)
