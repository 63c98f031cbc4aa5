"""The stores by which processes communicate, protected from other users of the machine and the network.

Both have the part of torch's `Store` that the monitoring of a run uses.
"""

import contextlib
import hashlib
import hmac
import os
import pwd
import secrets
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch.distributed import Store
from typing_extensions import override

from pipetrain.data.files import strict_json

SECRET = "PIPETRAIN_SECRET"
"""Environment variable with what processes of an outer launcher sign their entries with."""
_KEY_FILE = Path(".cache", "pipetrain", "store-key")
"""In the home of the user."""
_KEY_BYTES = 32
_SIGNATURE_DIGITS = 64
_BLOCK = 512


class Board(Protocol):
    """Values by name that processes leave for each other; all methods raise a RuntimeError if the store is gone."""

    def set(self, key: str, value: str) -> None:
        """Sets a value."""

    def get(self, key: str) -> bytes:
        """A value that is there."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Values that are there, in one request."""

    def check(self, keys: Sequence[str], /) -> bool:
        """True if there is a value for each of these keys."""


def json_value(board: Board, key: str) -> Any:
    """A value of JSON's; None if there is none, or another program has put something else there."""
    try:
        return strict_json.loads(board.get(key)) if board.check([key]) else None
    except ValueError:
        return None


class PrivateFolder(Board):
    """A board in a folder that no other user can enter: each value is a file.

    Values are replaced as a whole. On a full disk the bytes of the one before are overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    def set(self, key: str, value: str) -> None:
        file = self._file(key)
        content = value.encode()
        content = content.ljust(-(-len(content) // _BLOCK) * _BLOCK)
        try:
            partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
            try:
                partial.write_bytes(content)
                partial.replace(file)
            except OSError:
                with file.open("r+b") as before:
                    before.write(content)
                    before.truncate()
        except OSError as error:
            raise RuntimeError(f"{file}: {error}") from error

    @override
    def get(self, key: str) -> bytes:
        try:
            return self._file(key).read_bytes().rstrip(b" ")
        except OSError as error:
            raise RuntimeError(f"{self._file(key)}: {error}") from error

    @override
    def multi_get(self, keys: list[str], /) -> list[bytes]:
        return [self.get(key) for key in keys]

    @override
    def check(self, keys: Sequence[str], /) -> bool:
        return all(self._file(key).exists() for key in keys)

    def _file(self, key: str) -> Path:
        return self._path / key.replace("/", ",")


class SignedStore:
    """A board in a store that other users can reach; values that are not signed with the key are ignored.

    Args:
        key: of the signatures; None if processes share no secret, and every value is accepted.
        name: of the part of the store, which the signatures cover.
    """

    def __init__(self, store: Store, key: bytes | None, name: str = "") -> None:
        self._store = store
        self._key = key
        self._name = name
        self._checked: dict[str, bytes] = {}
        self._has_warned = False

    def set(self, key: str, value: str) -> None:
        """Sets a value, signed."""
        self._store.set(key, self._signature(key, value.encode()) + value)

    def get(self, key: str) -> bytes:
        """A value that is there, as the last check found it; empty if another has put something else there."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Values that the last check found; empty where another program has written the entry."""
        found = {key: value for key in keys if (value := self._checked.pop(key, None))}
        found |= self._verified([key for key in keys if key not in found])
        return [found.get(key, b"") for key in keys]

    def check(self, keys: Sequence[str], /) -> bool:
        """True if there is a signed value for each of these keys."""
        if not self._store.check([*keys]):
            return False
        if self._key is None:
            return True
        found = self._verified([*keys])
        self._checked |= found
        return len(found) == len(keys)

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is not signed."""
        return self._store.add(key, amount)

    def _verified(self, keys: list[str]) -> dict[str, bytes]:
        """Key -> value of each key with a valid signature; all keys are there."""
        found = dict(zip(keys, map(bytes, self._store.multi_get(keys)), strict=True)) if keys else {}
        if self._key is None:
            return found
        signed = {key: value for key, value in found.items() if self._is_signed(key, value)}
        foreign = next((key for key in keys if key not in signed), None)
        if foreign is not None and not self._has_warned:
            self._has_warned = True
            line = f"pipetrain: warning: the store holds {foreign}, which no process of this run wrote; it is ignored"
            print(line, file=sys.stderr, flush=True)
        return {key: value[_SIGNATURE_DIGITS:] for key, value in signed.items()}

    def _is_signed(self, key: str, value: bytes) -> bool:
        signature = self._signature(key, value[_SIGNATURE_DIGITS:]).encode()
        return hmac.compare_digest(value[:_SIGNATURE_DIGITS], signature)

    def _signature(self, key: str, value: bytes) -> str:
        if self._key is None:
            return ""
        return hmac.new(self._key, f"{self._name}/{key}\0".encode() + value, hashlib.sha256).hexdigest()


def shared_key() -> bytes | None:
    """The key that processes of an outer launcher sign with; None if they share no secret.

    It is made of PIPETRAIN_SECRET, or on one machine read from a file that only the user can read.
    """
    if secret := os.environ.get(SECRET):
        return hashlib.sha256(secret.encode()).digest()
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return None
    with contextlib.suppress(OSError, KeyError):
        # not by the environment, in which HOME may differ between processes
        file = Path(pwd.getpwuid(os.geteuid()).pw_dir, _KEY_FILE)
        if not file.exists():
            _write_key(file)
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
                return opened.read(_KEY_BYTES)
    return None


def _write_key(file: Path) -> None:
    """Writes a new key, unless another process is first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=file.parent)  # readable by its user alone
    try:
        with os.fdopen(number, "wb") as opened:
            opened.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(name, file)
    finally:
        Path(name).unlink()
