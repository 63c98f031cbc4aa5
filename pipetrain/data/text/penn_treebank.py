"""The Penn Treebank as Mikolov prepared it: 10,000 words, the rest `<unk>`, numbers `N`."""

from pathlib import Path

from pipetrain.data.text.files import read_text
from pipetrain.data.text.language_data import LanguageData, TokenKind, language_data
from pipetrain.errors import ConfigError

_SPLITS = ("valid", "test")
_FOLDERS = (".", "ptb", "penn", "simple-examples/data")
_REMEDY = (
    "put ptb.train.txt, ptb.valid.txt and ptb.test.txt there: they are in simple-examples/data of Mikolov's "
    "simple-examples.tgz; the treebank's license does not let pipetrain bring them"
)


def penn_treebank(
    root: str = "data", eval_split: str = "valid", positions: int = 70, *, carried: bool = False
) -> LanguageData:
    """Windows of the Penn Treebank's words, with `<eos>` at the end of each line.

    Args:
        root: the folder of the files; also `ptb`, `penn` or `simple-examples/data` in it.
        eval_split: `valid` or `test`.
        positions: words of a sample.
        carried: whether each minibatch continues the one before it.

    Raises:
        ConfigError: a file is missing.
    """
    if eval_split not in _SPLITS:
        raise ConfigError(f"dataset.eval_split={eval_split}: there are {' and '.join(_SPLITS)}")
    folder = _folder(Path(root).expanduser())
    paths = [folder / f"ptb.{split}.txt" for split in ("train", eval_split)]
    train, evaluation = (read_text(path, f"dataset.root={root}", _REMEDY) for path in paths)
    names = [str(path) for path in paths]
    words = TokenKind("words", None)
    return language_data((train, evaluation), names, words, positions, carried=carried)


def _folder(root: Path) -> Path:
    found = (root / each for each in _FOLDERS)
    return next((folder for folder in found if (folder / "ptb.train.txt").is_file()), root)
