"""The token ids that a model knows: those of the tables in which it looks up its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from pipetrain.errors import ConfigError
from pipetrain.tensors import Tensors


@dataclass(frozen=True)
class TokenRange:
    """What a model looks up in tables with a row for each id, as a language model does with its tokens.

    Attributes:
        split: which is looked at, `train` or `eval`.
        rows: number of an input, counted from 0 -> rows of the smallest table that it goes to.
        known: tokens that the data object says there are, if it does.
    """

    split: str
    rows: Mapping[int, int]
    known: int | None = None

    def of(self, split: str) -> Self:
        """The same range for another split."""
        return replace(self, split=split)

    def check(self, inputs: Tensors, indices: Sequence[int]) -> None:
        """Checks the inputs of the samples `indices`.

        Raises:
            ConfigError: an id has no row.
        """
        for number, rows in self.rows.items():
            ids = inputs[number]
            low, high = ids.aminmax() if ids.numel() else (0, 0)
            if low < 0 or high >= rows:
                where = ((ids < 0) | (ids >= rows)).nonzero()[0].tolist()
                raise ConfigError(self._error(indices[where[0]], int(ids[tuple(where)]), rows))

    def _error(self, index: int, token: int, rows: int) -> str:
        known = "" if self.known is None else f", and the data set's {self.known}"
        works = "correct the id" if token < 0 else f"correct it, or make a model for {max(token + 1, self.known or 0)}"
        return (
            f"dataset: sample {index} of `{self.split}` has the token id {token}; the model's vocabulary has {rows} "
            f"tokens, 0 to {rows - 1}{known}; {works}"
        )
