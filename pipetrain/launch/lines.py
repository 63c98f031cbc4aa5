"""What connects the workers of a run with the process that starts them."""

from dataclasses import dataclass
from multiprocessing.connection import Connection


@dataclass(frozen=True)
class WorkerLines:
    """The ends of two pipes that every worker has.

    Attributes:
        heartbeats: to tell that it lives.
        order: nothing is ever sent over it; the launcher closes it to have the run broken off.
    """

    heartbeats: Connection
    order: Connection
