"""A store that counts what is asked of it."""

from typing import NamedTuple

from torch.distributed import Store


class Asked(NamedTuple):
    requests: int
    keys: int


class CountingStore:
    """Counts the requests to a store, and the keys in them, until they are taken."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requests = self._keys = 0

    def taken(self) -> Asked:
        """Requests since the last call."""
        taken = Asked(self._requests, self._keys)
        self._requests = self._keys = 0
        return taken

    def set(self, key: str, value: str) -> None:
        self._count(1)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._count(1)
        return bytes(self._store.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._count(len(keys))
        return self._store.multi_get(keys)

    def check(self, keys: list[str]) -> bool:
        self._count(len(keys))
        return bool(self._store.check(keys))

    def _count(self, keys: int) -> None:
        self._requests += 1
        self._keys += keys
