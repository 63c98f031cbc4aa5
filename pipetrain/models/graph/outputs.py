"""Which of the tensors that a forward returns go to the loss."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pipetrain.errors import ConfigError

_PREFERRED = "logits"


def selected(returned: Any, wanted: str | None) -> tuple[tuple[Tensor, ...], str | None]:
    """The tensors for the loss, and the name of the one that was picked by name; None where none was.

    A tensor is taken as it is, and a plain tuple or list as so many arguments of the loss. Of a dict, a ModelOutput or
    a named tuple it is the entry `wanted`, else `logits`, else the first tensor.

    Raises:
        ConfigError: there is no such entry, or it is no tensor.
    """
    if isinstance(returned, Tensor):
        return (returned,), None
    named = _named(returned)
    if wanted is None and not named and isinstance(returned, tuple | list):
        return _all_tensors(returned), None
    tensors = {name: value for name, value in (named or _numbered(returned)).items() if isinstance(value, Tensor)}
    if not tensors:
        raise ConfigError(f"model: the forward returns {type(returned).__name__}; a tensor is needed for the loss")
    if wanted is not None and wanted not in tensors:
        raise ConfigError(f"model.output={wanted}: the forward returns {', '.join(tensors)}")
    name = wanted or (_PREFERRED if _PREFERRED in tensors else next(iter(tensors)))
    return (tensors[name],), name if len(tensors) > 1 else None


def _named(returned: Any) -> Mapping[str, Any]:
    if isinstance(returned, Mapping):
        return {str(key): value for key, value in returned.items()}
    return returned._asdict() if hasattr(returned, "_asdict") else {}


def _numbered(returned: Any) -> Mapping[str, Any]:
    return {str(i): value for i, value in enumerate(returned)} if isinstance(returned, tuple | list) else {}


def _all_tensors(returned: tuple[Any, ...] | list[Any]) -> tuple[Tensor, ...]:
    if not returned or not all(isinstance(each, Tensor) for each in returned):
        kinds = ", ".join(type(each).__name__ for each in returned)
        raise ConfigError(
            f"model: the forward returns ({kinds}), and a loss takes tensors; model.output=0 takes the first alone"
        )
    return tuple(returned)
