"""IMDb reviews, positive or negative (Maas et al. 2011), as the folder aclImdb holds them."""

from pathlib import Path

from pipetrain.data.text.labelled_texts import Examples, Pieces, TextClasses, text_classes
from pipetrain.errors import ConfigError

_CLASSES = ("neg", "pos")
_LINE_BREAK = "<br />"


def imdb(
    root: str = "data", tokens: str = "words", vocabulary_size: int | None = 25_000, max_length: int = 256
) -> TextClasses:
    """The reviews in `root`/aclImdb/{train,test}/{neg,pos}/*.txt, one a file; `root` may be aclImdb itself.

    Args:
        root: the folder of the files.
        tokens: `words` or `bpe` (subwords).
        vocabulary_size: different tokens at most.
        max_length: tokens of a review at most; what follows is cut off.

    Raises:
        ConfigError: a folder is missing or empty, or a file holds no text.
    """
    base = Path(root).expanduser().absolute()
    base = base if (base / "train").is_dir() else base / "aclImdb"
    train, test = (_split(base / name, root) for name in ("train", "test"))
    return text_classes(train, test, _CLASSES, Pieces(tokens, vocabulary_size, max_length))


def _split(folder: Path, root: str) -> Examples:
    texts: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(_CLASSES):
        paths = sorted((folder / name).glob("*.txt"))
        if not paths:
            raise ConfigError(
                f"dataset.root={root}: no reviews in {folder / name}; unpack aclImdb_v1.tar.gz, the Large Movie Review "
                "Dataset of ai.stanford.edu, and name the folder that holds aclImdb"
            )
        texts += map(_review, paths)
        labels += [label] * len(paths)
    return Examples(texts, labels).mixed()


def _review(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").replace(_LINE_BREAK, " ").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"dataset: {path} cannot be read: {error}") from error
    if not text:
        raise ConfigError(f"dataset: {path} holds no text; every review must have some")
    return text
