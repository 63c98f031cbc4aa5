"""Sentences of Jane Austen's six novels, and which of them each is from; bundled with the package."""

import gzip
import re
from collections.abc import Iterator
from importlib import resources

from pipetrain.data.text.labelled_texts import Examples, Pieces, TextClasses, text_classes

_NOVELS = {
    "EMMA": "Emma",
    "MANSFIELD PARK": "Mansfield Park",
    "NORTHANGER ABBEY": "Northanger Abbey",
    "Persuasion": "Persuasion",
    "PRIDE AND PREJUDICE": "Pride and Prejudice",
    "SENSE AND SENSIBILITY": "Sense and Sensibility",
}
"""The first line of each novel, in the order of the file, and its name."""
_LEAST = 30
"""Characters of a sentence; what is shorter are headings and exclamations, which are of no novel."""
_BETWEEN_SENTENCES = re.compile(r"""(?<=[.!?]["')])\s+(?=["'(]?[A-Z])|(?<=[.!?])\s+(?=["'(]?[A-Z])""")
_TITLE = re.compile(r"\b(Mr|Mrs|Dr|St)\.\s+")


def austen_novels(
    eval_share: float = 0.1, tokens: str = "words", vocabulary_size: int | None = 8000, max_length: int = 48
) -> TextClasses:
    """The sentences of the six novels, each of the class of its novel.

    Args:
        eval_share: the share of the sentences to evaluate on.
        tokens: `words` or `bpe` (subwords).
        vocabulary_size: different tokens at most.
        max_length: tokens of a sentence at most; what follows is cut off.

    Raises:
        ConfigError: a setting is out of its range.
    """
    novels = list(_NOVELS.values())
    pairs = [(sentence, label) for label, novel in enumerate(_novels()) for sentence in sentences(novel)]
    texts, labels = zip(*pairs, strict=True)
    train, evaluation = Examples(texts, labels).divided(eval_share)
    return text_classes(train, evaluation, novels, Pieces(tokens, vocabulary_size, max_length))


def _novels() -> list[str]:
    """The text of each novel."""
    with (resources.files("pipetrain.data.text") / "austen.txt.gz").open("rb") as file:
        lines = gzip.decompress(file.read()).decode().splitlines()
    starts = [lines.index(title) for title in _NOVELS]
    ends = [*starts[1:], len(lines)]
    return ["\n".join(lines[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text whose paragraphs are apart by empty lines, without line breaks and very short ones."""
    for paragraph in re.split(r"\n\s*\n", text):
        line = _TITLE.sub(r"\1 ", " ".join(paragraph.split()))
        yield from (sentence for sentence in _BETWEEN_SENTENCES.split(line) if len(sentence) >= _LEAST)
