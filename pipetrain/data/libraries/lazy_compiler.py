"""torch's compiler, imported when something is compiled.

`torch.optim.Optimizer.step` and a few more are wrapped by `torch._disable_dynamo`, which at the first call imports the
compiler (1.5 s, about as long as torch itself) only to have the function excluded from compilation. Likewise
`init_process_group` clears caches of the compiler. Once torch does both without the import, this module can go.
tests/test_private_apis.py checks that torch asks the stand-in for nothing else; if it does, the compiler is imported,
which is slow and not wrong.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from typing_extensions import override

_NAME = "torch._dynamo"


def install() -> None:
    """Has the compiler imported when something is compiled in this process, unless it is there already."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _LazyCompiler()


class _LazyCompiler(ModuleType):
    """Stands in for the compiler until something is to be compiled."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.__spec__ = importlib.util.find_spec(_NAME)
        self.trace_rules = _TraceRules()
        self._left_alone: list[Callable[..., Any]] = []

    def graph_break(self, _message: str = "") -> None:
        """Does nothing, as the compiler's own where nothing is compiled."""

    def disable(self, *given: Any, **options: Any) -> Any:
        """The function itself, for functions of torch's own; the compiler hears of them if it ever comes."""
        if options != {"wrapping": False}:
            return self._imported().disable(*given, **options)
        self._left_alone.append(given[0])
        return given[0]

    @override
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # of interest to those who look at all modules
            raise AttributeError(name)
        return getattr(self._imported(), name)

    def _imported(self) -> Any:
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            for function in self._left_alone:
                vars(function).pop("__dynamo_disable", None)
        return importlib.import_module(_NAME)


class _TraceRules:
    """Stands in for the compiler's rules, whose caches are empty while it is not imported."""

    def clear_lru_cache(self) -> None:
        """Does nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{_NAME}.trace_rules"), name)
