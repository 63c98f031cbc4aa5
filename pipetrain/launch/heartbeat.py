"""The sign of life that a worker's watchdog gives every half second."""

import json
from dataclasses import asdict, dataclass
from typing import Self

BEAT_SECONDS = 0.5
"""Between two heartbeats of a worker."""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of a worker.

    Attributes:
        process: its number.
        pid, host: where to find it.
        number: counts its heartbeats.
        what: it does.
        waiting, starting, finished, changes: as of its activity.
        told: whether it has been told to end by a signal.
    """

    process: int
    pid: int
    host: str
    number: int
    what: str = "starting"
    waiting: bool = False
    starting: bool = True
    finished: bool = False
    changes: int = 0
    told: bool = False

    def encoded(self) -> bytes:
        """As sent."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, sent: bytes) -> Self:
        """As received."""
        return cls(**json.loads(sent))
