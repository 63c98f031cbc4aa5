"""The embeddings of a translation model's two languages, and which weights they share with each other and the head."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from pipetrain.errors import ConfigError, as_configured

_Embedding = TypeVar("_Embedding", bound=nn.Embedding)


def embedding_pair(
    make: Callable[[int], _Embedding], vocabularies: tuple[int, int], *, shared: bool
) -> tuple[_Embedding, _Embedding]:
    """The embeddings of source and target, one and the same if `shared`; `make` makes that of a vocabulary's size.

    Raises:
        ConfigError: they are to be shared, and the languages have different vocabularies.
    """
    source, target = vocabularies
    if not shared:
        return make(source), make(target)
    if source != target:
        raise ConfigError(
            f"model.shared_embeddings: one embedding of both languages needs one vocabulary, and theirs have {source} "
            f"and {target} tokens; dataset.joint=true makes one"
        )
    embedding = make(source)
    return embedding, embedding


def check_shared(shared: str | None, choices: tuple[str, ...]) -> None:
    """Checks the setting `model.shared_embeddings`.

    Raises:
        ConfigError: it is none of `choices`, and not null.
    """
    if shared is not None and shared not in choices:
        raise ConfigError(
            f"model.shared_embeddings={as_configured(shared)}: one of {', '.join(choices)}, or null for none"
        )
