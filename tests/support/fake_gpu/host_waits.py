"""Where the host waits for the device, how long it may, and what went wrong."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, Protocol

import torch

NAME = "fakegpu"
GARBAGE = 0xA5
EXIT_CODE = 99

waits: Counter[tuple[str, str]] = Counter()
"""How often the host waited, by (kind, line); kinds: implicit, pageable, event, stream, device, nccl."""
watched = [str(Path(find_spec("pipetrain").origin).parent) + "/"]  # type: ignore[union-attr, arg-type]
"""The folders whose lines count as the product's; tests may add theirs."""


def setting(name: str, otherwise: float) -> float:
    """A number of the environment, which tests may set at any time."""
    return float(os.environ.get(name) or otherwise)


def patience() -> float:
    """Seconds that a host may be stuck."""
    return setting("STRICT_NCCL_SECONDS", 20)


class Awaited(Protocol):
    def reached(self) -> bool: ...

    def wait(self, timeout: float | None) -> bool: ...


posted: dict[int, tuple[str, Awaited]] = {}
"""What has been given to NCCL and is not complete: in words, and its end."""
failures: list[BaseException] = []


def rank() -> int:
    return int(os.environ.get("RANK") or 0)


_FOR_CALLERS = ("/device_queue.py", "/host_copies.py")
"""Files that wait for their callers."""


def line() -> str:
    """The innermost line of the product's that got here; of the main thread where this one, autograd's, has none."""
    main = threading.main_thread().ident or 0
    # kept in a variable, the mapping of all frames would hold this one, and the tensors of all callers, for long
    others = [] if threading.get_ident() == main else [sys._current_frames()[main]]
    for innermost in (sys._getframe(1), *others):
        frame = innermost
        while frame is not None:
            file = frame.f_code.co_filename
            for folder in watched:
                if file.startswith(folder) and not file.endswith(_FOR_CALLERS):
                    return f"{file.removeprefix(str(Path(folder).parent) + '/')}:{frame.f_lineno}"
            frame = frame.f_back
    return "?"


def give_up(what: str) -> NoReturn:
    """Ends the process: an exception could be taken for a lost neighbor."""
    operations = "".join(f"\n    posted: {words}" for words, _ in [*posted.values()])
    _log_error(f"{what}{operations}\n    at {line()}")
    dump()
    os._exit(EXIT_CODE)


def _log_error(what: str) -> None:
    """Says on stderr, and in the folder that PIPETRAIN_EMULATOR_LOG names, what went wrong first."""
    text = f"EMULATED GPU: process {rank()}: {what}"
    if folder := os.environ.get("PIPETRAIN_EMULATOR_LOG"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), Path(folder, f"{os.getpid()}.error").open("x") as file:
            file.write(text)
    print(text, file=sys.stderr, flush=True)


def host_wait(until: Awaited, kind: str, what: str) -> None:
    """Blocks the host, and counts that."""
    waits[kind, line()] += 1
    blocked(until, what)


def blocked(until: Awaited, what: str) -> None:
    """Blocks the host without counting it."""
    if not until.wait(None if patience() == float("inf") else patience()):
        give_up(f"stuck on the host: {what}")
    if failures:
        raise torch.AcceleratorError(f"emulated GPU: {failures[0]}") from failures[0]


def failed(error: BaseException) -> None:
    """From here on all that waits for the device fails, as after an error of CUDA's."""
    _log_error(f"{type(error).__name__}: {error}")
    failures.append(error)


def dump() -> None:
    """Writes the waits as JSON lines into the folder that PIPETRAIN_EMULATOR_LOG names, if it does."""
    if folder := os.environ.get("PIPETRAIN_EMULATOR_LOG"):
        rows = [{"rank": rank(), "kind": k, "line": at, "count": n} for (k, at), n in [*waits.items()]]
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{os.getpid()}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def logged_waits(folder: Path, *kinds: str) -> Counter[str]:
    """How often the hosts of all processes waited at each line; only the implicit waits unless told otherwise."""
    found: Counter[str] = Counter()
    for row in (json.loads(text) for file in folder.glob("*.jsonl") for text in file.read_text().splitlines()):
        if row["kind"] in (kinds or ("implicit",)):
            found[row["line"]] += row["count"]
    return found


def logged_errors(folder: Path) -> str:
    """What went wrong first in each process."""
    return "\n".join(file.read_text() for file in folder.glob("*.error"))
