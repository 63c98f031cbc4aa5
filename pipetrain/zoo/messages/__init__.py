"""Formats of messages between stages, defined in docs/messages.md: their interface, formats, and the ends of links.

Imports the engine alone.
"""

from pipetrain.zoo.messages.base import Direction, MessageFormat, MessageTensor
from pipetrain.zoo.messages.settings import Messages

__all__ = ["Direction", "MessageFormat", "MessageTensor", "Messages"]
