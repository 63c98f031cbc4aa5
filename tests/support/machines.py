"""Two machines for a test, which is skipped where they cannot be made."""

import contextlib
from collections.abc import Iterator

import pytest
import two_machines
from two_machines import Machine


@contextlib.contextmanager
def machines() -> Iterator[tuple[Machine, Machine]]:
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(two_machines.two_machines())
        except two_machines.NotAllowedError as error:
            pytest.skip(str(error))
        yield made
