"""Whether a stage's first layers change their inputs in place."""

from pipetrain.tensors import Tensors


class InPlaceCheck:
    """Finds out in the first forward whether a recomputation could start from inputs that were not copied."""

    def __init__(self) -> None:
        self._changes: bool | None = None
        self._versions: list[int] = []

    def begin(self, inputs: Tensors) -> None:
        """Takes note of the inputs before a forward."""
        if self._changes is None:
            self._versions = _versions(inputs)

    def end(self, inputs: Tensors) -> None:
        """Compares the inputs after that forward."""
        if self._changes is None:
            self._changes = self._versions != _versions(inputs)

    def stored(self, inputs: Tensors) -> Tensors:
        """The inputs as a recomputation can start from them: copies unless it is known that nothing changes them."""
        return inputs if self._changes is False else tuple(tensor.clone() for tensor in inputs)


def _versions(inputs: Tensors) -> list[int]:
    return [tensor._version for tensor in inputs]
