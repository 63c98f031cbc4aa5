"""Copies of a module to try it on, with its weights or with nothing but their shapes."""

import copy
import itertools
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from pipetrain.models.graph.recorder import plain_tensors


class Copies:
    """Copies of a module.

    Args:
        model: left as it is.
        with_values: whether copies have its weights, and inputs their values; shapes alone cost nothing.
    """

    def __init__(self, model: nn.Module, *, with_values: bool) -> None:
        self.model = model
        self._fake = None if with_values else FakeTensorMode(allow_non_fake_inputs=True)
        self._shapes = {} if with_values else self._weights()

    @property
    def have_values(self) -> bool:
        """Whether the weights of the copies, and inputs, have values."""
        return self._fake is None

    @property
    def mode(self) -> AbstractContextManager[Any]:
        """The context in which a copy is called."""
        return nullcontext() if self._fake is None else _quiet(self._fake)

    def tensor(self, tensor: Tensor) -> Tensor:
        """A tensor as copies take it."""
        return tensor.clone() if self._fake is None else self._fake.from_tensor(tensor)

    def module(self, *, training: bool) -> nn.Module:
        """A copy in one of the modes; tensors that are plain attributes stay the same."""
        plain = {id(tensor): tensor for tensor in plain_tensors(self.model).values()}
        module = copy.deepcopy(self.model, {**plain, **(self._shapes or self._weights())})
        without_cache(module)
        return module.train(training)

    def returned(self, path: str, args: Any, kwargs: Any, *, training: bool) -> Any:
        """What a submodule returns for arguments of these shapes, tried on some values as it cannot do without."""
        assert self._fake is not None
        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
            module = copy.deepcopy(self.model.get_submodule(path)).train(training)
            args, kwargs = tree_map_only(Tensor, _some_values, (args, kwargs))
            result = module(*args, **kwargs)
        return tree_map_only(Tensor, lambda tensor: self.tensor(tensor.detach()), result)

    def _weights(self) -> dict[int, Any]:
        converted: dict[int, Any] = {}
        for tensor in itertools.chain(self.model.parameters(), self.model.buffers()):
            value = self.tensor(tensor.detach())
            weight = isinstance(tensor, nn.Parameter)
            converted[id(tensor)] = nn.Parameter(value, requires_grad=tensor.requires_grad) if weight else value
        return converted


def without_cache(module: nn.Module) -> None:
    """Switches off what transformers keeps for generation."""
    if hasattr(getattr(module, "config", None), "use_cache"):
        module.config.use_cache = False  # type: ignore[union-attr]


@contextmanager
def _quiet(mode: FakeTensorMode) -> Iterator[None]:
    """The mode, without torch's report of what cannot be done in it: another way is tried."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with mode:
            yield
    finally:
        logger.setLevel(level)


def _some_values(tensor: Tensor) -> Tensor:
    """Random numbers; zeros where they may be indices."""
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)
