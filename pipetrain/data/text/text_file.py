"""Language modeling on any text: a file, or one for training and one for evaluation; and on the bundled novels."""

from importlib import resources
from pathlib import Path

from pipetrain.data.text.files import read_text, split_text
from pipetrain.data.text.language_data import LanguageData, TokenKind, language_data
from pipetrain.number_range import NumberRange

_SHARE = NumberRange(0, 1, least_too=False)
_REMEDY = "name a text file, plain or .gz"


def text_file(  # noqa: PLR0913  (one for each setting of the choice)
    path: str,
    eval_path: str | None = None,
    eval_share: float = 0.1,
    tokens: str = "bpe",
    vocabulary_size: int | None = 4096,
    positions: int = 128,
    *,
    carried: bool = False,
) -> LanguageData:
    """Windows of a text file, plain or gzipped.

    Args:
        path: of the text to train on.
        eval_path: of the text to evaluate on; None: the end of the same text.
        eval_share: how much of it, where that is so.
        tokens: `characters`, `bpe` (subwords over bytes) or `words`.
        vocabulary_size: tokens at most; None: all characters or words.
        positions: tokens of a sample.
        carried: whether each minibatch continues the one before it.

    Raises:
        ConfigError: a file is missing, empty, too short or no text, or a setting is wrong.
    """
    kind = TokenKind(tokens, vocabulary_size)
    train = Path(path).expanduser()
    text = read_text(train, f"dataset.path={path}", _REMEDY)
    if eval_path is None:
        _SHARE.check("dataset.eval_share", eval_share)
        texts = split_text(text, eval_share)
        names = [f"the {part} part of {train}" for part in ("training", "evaluation")]
    else:
        other = Path(eval_path).expanduser()
        texts = text, read_text(other, f"dataset.eval_path={eval_path}", _REMEDY)
        names = [str(train), str(other)]
    return language_data(texts, names, kind, positions, carried=carried)


def austen(
    tokens: str = "bpe",
    vocabulary_size: int | None = 4096,
    positions: int = 128,
    *,
    carried: bool = False,
) -> LanguageData:
    """Windows of the six novels of Jane Austen, 718,000 words, bundled; the last tenth is for evaluation.

    The arguments are those of `text_file`. In the public domain.

    Raises:
        ConfigError: a setting is wrong.
    """
    with resources.as_file(resources.files("pipetrain.data.text") / "austen.txt.gz") as path:
        return text_file(str(path), None, 0.1, tokens, vocabulary_size, positions, carried=carried)
