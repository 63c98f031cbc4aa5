"""The newest values of samples, as many as a limit of bytes allows, in memory or in a file."""

import tempfile
from collections.abc import Mapping
from typing import IO, NamedTuple

import torch
from torch import Tensor

Key = tuple[int, int]
"""Place of a tensor in its message, and id of a sample."""


class _Stored(NamedTuple):
    """Where a row is in the file, and what it was."""

    start: int
    length: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize


class _File:
    """Rows in a nameless file, which ends with the process; a freed place takes the next row of its size."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def put(self, row: Tensor) -> _Stored:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (open until the end)
        places = self._free.get(row.nbytes)
        start = places.pop() if places else self._end
        self._end = max(self._end, start + row.nbytes)
        self._file.seek(start)
        self._file.write(row.cpu().view(torch.uint8).numpy().data)
        return _Stored(start, len(row), row.dtype, row.device)

    def get(self, stored: _Stored) -> Tensor:
        assert self._file is not None
        self._file.seek(stored.start)
        content = bytearray(self._file.read(stored.nbytes))
        return torch.frombuffer(content, dtype=stored.dtype).to(stored.device)

    def free(self, stored: _Stored) -> None:
        self._free.setdefault(stored.nbytes, []).append(stored.start)


class SampleCache:
    """Rows of values by key; when they take more than `most_bytes`, the one that was put in first goes.

    Args:
        most_bytes: of all rows.
        folder: of a file that has them; None: they stay in memory.
    """

    def __init__(self, most_bytes: float, folder: str | None) -> None:
        self._most_bytes = most_bytes
        self._file = None if folder is None else _File(folder)
        self._rows: dict[Key, Tensor | _Stored] = {}
        self._bytes = 0

    def get(self, key: Key) -> Tensor | None:
        """The row (n,) of a key; None if there is none."""
        row = self._rows.get(key)
        return self._file.get(row) if self._file is not None and isinstance(row, _Stored) else row  # type: ignore[return-value]

    def put(self, key: Key, row: Tensor) -> None:
        """Puts a copy of a row in place of the key's former one."""
        self._remove(key)
        self._rows[key] = row.clone() if self._file is None else self._file.put(row.contiguous())
        self._bytes += row.nbytes
        while self._bytes > self._most_bytes:
            self._remove(next(iter(self._rows)))

    def _remove(self, key: Key) -> None:
        if (row := self._rows.pop(key, None)) is None:
            return
        self._bytes -= row.nbytes
        if self._file is not None and isinstance(row, _Stored):
            self._file.free(row)

    def state(self) -> dict[str, Tensor]:
        """`keys` (rows, 3) in the order of age: place, sample and length; and for each place its rows, one by one."""
        rows = {key: row for key in self._rows if (row := self.get(key)) is not None}
        if not rows:
            return {}
        by_place: dict[int, list[Tensor]] = {}
        for (place, _), row in rows.items():
            by_place.setdefault(place, []).append(row)
        keys = torch.tensor([(*key, len(row)) for key, row in rows.items()])
        return {"keys": keys, **{str(place): torch.cat(each) for place, each in by_place.items()}}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Puts in the rows of a `state`."""
        keys = state["keys"].tolist() if "keys" in state else []
        starts: dict[int, int] = {}
        for place, sample, count in keys:
            start = starts.get(place, 0)
            self.put((place, sample), state[str(place)][start : start + count])
            starts[place] = start + count
