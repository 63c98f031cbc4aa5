"""Whether a stage's first layers change their inputs in place."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipetrain.tensors import Tensors


class InPlaceCheck:
    """Finds out in the first forward whether a recomputation could start from inputs that were not copied."""

    def __init__(self) -> None:
        self._changes: bool | None = None

    @contextmanager
    def watching(self, inputs: Tensors) -> Iterator[None]:
        """Around a forward of these inputs."""
        if self._changes is not None:
            yield
            return
        versions = [tensor._version for tensor in inputs]
        yield
        self._changes = versions != [tensor._version for tensor in inputs]

    def stored(self, inputs: Tensors) -> Tensors:
        """The inputs as a recomputation can start from them: copies unless it is known that nothing changes them."""
        return inputs if self._changes is False else tuple(tensor.clone() for tensor in inputs)
