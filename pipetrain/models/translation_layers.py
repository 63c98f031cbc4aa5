"""The embeddings of a translation model's two languages, and which weights they share with each other and the head."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from pipetrain.errors import ConfigError, as_configured

_Embedding = TypeVar("_Embedding", bound=nn.Embedding)


def embedding_pair(
    make: Callable[[int], _Embedding], vocabularies: tuple[int, int], *, joint: bool, shared: bool
) -> tuple[_Embedding, _Embedding]:
    """The embeddings of source and target.

    Args:
        make: makes that of a vocabulary of so many tokens.
        vocabularies: the tokens of source and target.
        joint: whether these are the same tokens.
        shared: whether both embeddings have one weight.

    Raises:
        ConfigError: they are to share it, and the languages have different vocabularies.
    """
    source, target = map(make, vocabularies)
    if shared:
        if not joint or source.num_embeddings != target.num_embeddings:
            raise ConfigError(
                "model.shared_embeddings: one embedding of both languages needs one vocabulary of both, and theirs, of "
                f"{vocabularies[0]} and {vocabularies[1]} tokens, are different; dataset.joint=true makes one"
            )
        target.weight = source.weight
    return source, target


def check_shared(shared: str | None, choices: tuple[str, ...]) -> None:
    """Checks the setting `model.shared_embeddings`.

    Raises:
        ConfigError: it is none of `choices`, and not null.
    """
    if shared is not None and shared not in choices:
        raise ConfigError(
            f"model.shared_embeddings={as_configured(shared)}: one of {', '.join(choices)}, or null for none"
        )
