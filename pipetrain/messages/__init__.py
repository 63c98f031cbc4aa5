"""Messages between stages in other formats than plain tensors: their interface, and the ends of links.

Imports the engine alone. Names are imported when they are asked for.
"""

from typing import TYPE_CHECKING

from pipetrain.engine.lazy_names import lazy_names

if TYPE_CHECKING:
    from pipetrain.messages.formats import Direction as Direction
    from pipetrain.messages.formats import MessageFormat as MessageFormat
    from pipetrain.messages.formats import MessageTensor as MessageTensor
    from pipetrain.messages.settings import Messages as Messages

_HOMES = {
    "Direction": "formats",
    "MessageFormat": "formats",
    "MessageTensor": "formats",
    "Messages": "settings",
}
"""Name -> the module that it is of."""

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
