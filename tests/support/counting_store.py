"""A store that counts what is asked of it."""

from torch.distributed import HashStore


class CountingStore(HashStore):
    """Counts requests until they are taken, and the keys in all of them."""

    def __init__(self):
        super().__init__()
        self.requests = self.keys = 0

    def taken(self):
        """Requests since the last call."""
        requests, self.requests = self.requests, 0
        return requests

    def _count(self, keys=1):
        self.requests += 1
        self.keys += keys

    def set(self, key, value):
        self._count()
        super().set(key, value)

    def get(self, key):
        self._count()
        return super().get(key)

    def multi_get(self, keys):
        self._count(len(keys))
        return super().multi_get(keys)

    def check(self, keys):
        self._count(len(keys))
        return super().check(keys)
