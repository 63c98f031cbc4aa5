"""Where the workers of one launcher find each other: a store at the loopback address."""

import socket
from collections.abc import Callable
from typing import ClassVar

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from typing_extensions import override

from pipetrain.executors.messages.loopback import ADDRESS


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one launcher, whose workers use its store.

    torch's own listens on every interface and unpickles what it reads from its store, which anyone who reaches the
    machine could have written.

    Args:
        run_id: tells runs apart.
        check: called while the launcher finds nothing wrong with its workers; raises what it does not see.
    """

    NAME: ClassVar[str] = "pipetrain-loopback"
    """Under which torch's launcher finds it."""

    def __init__(self, run_id: str, check: Callable[[], None]) -> None:
        self._run_id = run_id
        self._check = check
        listener = socket.create_server((ADDRESS, 0))
        self._port = listener.getsockname()[1]
        self._store = TCPStore(
            ADDRESS, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    @override
    def get_backend(self) -> str:
        return self.NAME

    @property
    @override
    def use_agent_store(self) -> bool:
        return True

    @override
    def next_rendezvous(self) -> RendezvousInfo:
        address = RendezvousStoreInfo(ADDRESS, self._port)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, address)

    @override
    def is_closed(self) -> bool:
        return False

    @override
    def set_closed(self) -> None:
        pass

    @override
    def num_nodes_waiting(self) -> int:
        self._check()  # torch asks each time it has looked at the workers
        return 0

    @override
    def get_run_id(self) -> str:
        return self._run_id

    @override
    def shutdown(self) -> bool:
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id, parameters.config["check"])


rendezvous_handler_registry.register(LoopbackRendezvous.NAME, _create)
