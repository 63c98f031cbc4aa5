"""Translation data from parallel text files."""

from collections.abc import Sequence

from pipetrain.data.parallel_files import Corpus
from pipetrain.data.translation import TokenSettings, TranslationDataset


def parallel_text(  # noqa: PLR0913  (one for each setting of the choice)
    root: str = "data",
    source: str = "de",
    target: str = "en",
    train: str | Sequence[str] = "train",
    eval: str | Sequence[str] = "val",
    tokens: str = "bpe",
    vocabulary_size: int | None = 8000,
    bpe_mark: str | None = None,
    max_length: int | None = 256,
    batch_tokens: int | None = 4096,
    origin: str | None = None,
    *,
    joint: bool = False,
) -> TranslationDataset:
    """Pairs of files in `root` whose lines translate each other, such as train.de and train.en, plain or .gz, in UTF-8.

    `train` and `eval` are what stands before the language in their names, or a name with LANG for the language; several
    are read one after the other. The other options are those of `TokenSettings`; `origin` is told where a file is
    missing.

    Raises:
        ConfigError: files are missing, cannot be read or do not match; or a setting is out of its range.
    """
    settings = TokenSettings(tokens, vocabulary_size, joint, bpe_mark, max_length, batch_tokens)
    corpus = Corpus(root, (source, target), origin)
    return TranslationDataset(corpus.split("dataset.train", train), corpus.split("dataset.eval", eval), settings)
