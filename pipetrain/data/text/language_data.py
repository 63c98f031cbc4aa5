"""Data of a language model: two sequences of tokens, and the vocabulary that they are of."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.data.text.windows import CarriedWindows, TokenSource, Windows
from pipetrain.data.vocabulary import CharacterVocabulary, Ids, TokenizerVocabulary, Vocabulary, WordVocabulary
from pipetrain.errors import ConfigError, check_whole

KINDS = ("characters", "bpe", "words")


@dataclass(frozen=True)
class LanguageData:
    """What a language model is trained on.

    Attributes:
        train, eval: windows of tokens.
        vocabulary_size: token ids are below it.
        max_length: positions of a sample.
        vocabulary: what the tokens mean; None where nobody knows.
    """

    train: Windows
    eval: Windows
    vocabulary_size: int
    max_length: int
    vocabulary: Vocabulary | None = None

    @property
    def vocabulary_sha256(self) -> str | None:
        """What tells its vocabulary from others; None where it has none."""
        return None if self.vocabulary is None else self.vocabulary.sha256


@dataclass(frozen=True)
class TokenKind:
    """How text becomes tokens.

    Attributes:
        kind: `characters`, `bpe` (subwords over bytes) or `words`.
        size: of the vocabulary at most; None: all characters or words.

    Raises:
        ConfigError: there is no such kind, or the size is too small.
    """

    kind: str
    size: int | None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"dataset.tokens={self.kind}: one of {', '.join(KINDS)}")
        if self.size is not None:
            check_whole("dataset.vocabulary_size", self.size, least=3, otherwise="or null for all characters or words")

    def vocabulary(self, train: str, evaluation: str) -> Vocabulary:
        """The vocabulary of a text: subwords and words of its training part alone, characters of both."""
        if self.kind == "characters":
            return CharacterVocabulary.of(train + evaluation)
        if self.kind == "words":
            return WordVocabulary.of(train, self.size)
        return TokenizerVocabulary.byte_pairs(train, self.size)


def language_data(
    texts: tuple[str, str], names: Sequence[str], tokens: TokenKind, positions: int, *, carried: bool
) -> LanguageData:
    """The data of a training and an evaluation text.

    Args:
        texts: both.
        names: of both, for errors.
        tokens: how they become tokens.
        positions: of a sample.
        carried: whether minibatches continue one another.

    Raises:
        ConfigError: a text is too short for a sample.
    """
    vocabulary = tokens.vocabulary(*texts)
    splits = [
        windows(TokenSource(_encoded(vocabulary, text), vocabulary.size, name), positions, carried=carried)
        for text, name in zip(texts, names, strict=True)
    ]
    return LanguageData(splits[0], splits[1], vocabulary.size, positions, vocabulary)


def _encoded(vocabulary: Vocabulary, text: str) -> Ids:
    return vocabulary.encode_once(text) if isinstance(vocabulary, TokenizerVocabulary) else vocabulary.encode(text)


def windows(source: TokenSource, positions: int, *, carried: bool) -> Windows:
    """The samples of a sequence."""
    return CarriedWindows(source, positions) if carried else Windows(source, positions)
