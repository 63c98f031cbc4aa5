"""Language modeling on text files: any, the bundled novels, and the Penn Treebank."""

import gzip
import lzma
import os
import zlib
from importlib import resources
from pathlib import Path

from pipetrain.data.files.regular_file import opened
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.number_range import NumberRange
from pipetrain.zoo.data.text.language import LanguageData, language_data

MOST_BYTES = 10**9
"""Size of the largest text: it is read whole and then cut into tokens."""
_CHUNK = 2**24
"""Bytes per read."""


def read_text(path: Path, setting: str, remedy: str) -> str:
    """The text of a UTF-8 file, unpacked if its name ends in .gz; every line ends in a newline character alone.

    Raises:
        ConfigError: there is no such file, it cannot be read or unpacked, has more than `MOST_BYTES`, is no UTF-8, or
            holds no text; names the file's setting, such as `dataset.path=novel.txt`, and the remedy.
    """
    try:
        data = _content(path)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"{setting}: {path} has more than {MOST_BYTES // 10**6:,} MB of text; use a part of it")
        text = data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{setting}: there is no file {path.absolute()}; {remedy}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{setting}: {path} is not a complete gzip archive ({error}); fetch it again") from error
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{setting}: {path} is not UTF-8: byte {error.start} is {data[error.start]:#04x}; convert it, for instance "
            f"with iconv -t utf-8"
        ) from error
    if not text.strip():
        raise ConfigError(f"{setting}: {path} holds no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _content(path: Path) -> bytearray:
    """The bytes of a file, unpacked if its name ends in .gz; of a larger one, a few more than `MOST_BYTES`."""
    data = bytearray()
    with opened(path) as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
        holds = os.fstat(file.fileno()).st_size > 0  # none of /proc's, some of which never end
        while holds and len(data) <= MOST_BYTES and (chunk := stream.read(_CHUNK)):
            data += chunk
    return data


def split_text(text: str, share: float) -> tuple[str, str]:
    """The text up to a line's end, and the last `share` of it or a little less.

    If no line begins after the cut, as in a text of a single line, it goes through the line.
    """
    cut = int(len(text) * (1 - share))
    end = text.find("\n", cut, len(text) - 1)
    cut = cut if end < 0 else end + 1
    return text[:cut], text[cut:]


EVAL_SHARE = NumberRange(0, 1, least_too=False)
"""Shares of one text that evaluation may take."""
_TEXT_REMEDY = "name a text file, plain or .gz"


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
    """Windows of a text file, plain or gzipped; conf/dataset/text_file.yaml describes the settings.

    Raises:
        ConfigError: a file is missing, empty, too short or no text, or a setting is wrong.
    """
    train = Path(path).expanduser()
    text = read_text(train, f"dataset.path={path}", _TEXT_REMEDY)
    if eval_path is None:
        EVAL_SHARE.check("dataset.eval_share", eval_share)
        texts = split_text(text, eval_share)
        names = [f"the {part} part of {train}" for part in ("training", "evaluation")]
    else:
        other = Path(eval_path).expanduser()
        texts = text, read_text(other, f"dataset.eval_path={eval_path}", _TEXT_REMEDY)
        names = [str(train), str(other)]
    return language_data(texts, names, tokens, vocabulary_size, positions, carried=carried)


def austen(
    tokens: str = "bpe",
    vocabulary_size: int | None = 4096,
    positions: int = 128,
    *,
    carried: bool = False,
) -> LanguageData:
    """Windows of the six novels of Jane Austen, 718,000 words, bundled; the last tenth is for evaluation.

    Takes the arguments of `text_file`. In the public domain.

    Raises:
        ConfigError: a setting is wrong.
    """
    texts = split_text(bundled_novels(), 0.1)
    names = [f"the {part} part of Austen's novels" for part in ("training", "evaluation")]
    return language_data(texts, names, tokens, vocabulary_size, positions, carried=carried)


def bundled_novels() -> str:
    """The text of the six novels, each after a line with its title."""
    file = resources.files("pipetrain.zoo.data.text") / "austen.txt.xz"
    return lzma.decompress(file.read_bytes()).decode()


_SPLITS = ("valid", "test")
_FOLDERS = (".", "ptb", "penn", "simple-examples/data")
_TREEBANK_REMEDY = (
    "put ptb.train.txt, ptb.valid.txt and ptb.test.txt there: they are in simple-examples/data of Mikolov's "
    "simple-examples.tgz; the treebank's license does not let pipetrain bring them"
)


def penn_treebank(
    root: str = "data", eval_split: str = "valid", positions: int = 70, *, carried: bool = False
) -> LanguageData:
    """Windows of the Penn Treebank's words, with `<eos>` at the end of each line.

    The files are in `root`, or in `ptb`, `penn` or `simple-examples/data` there.

    Raises:
        ConfigError: a file is missing.
    """
    if eval_split not in _SPLITS:
        raise ConfigError(f"dataset.eval_split={eval_split}: must be {' or '.join(_SPLITS)}")
    base = Path(root).expanduser()
    folder = next((base / each for each in _FOLDERS if (base / each / "ptb.train.txt").is_file()), base)
    paths = [folder / f"ptb.{split}.txt" for split in ("train", eval_split)]
    train, evaluation = (read_text(path, f"dataset.root={root}", _TREEBANK_REMEDY) for path in paths)
    names = [str(path) for path in paths]
    return language_data((train, evaluation), names, "words", None, positions, carried=carried)
