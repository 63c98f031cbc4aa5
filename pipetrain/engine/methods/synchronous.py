"""The synchronous methods: every forward and backward of minibatch t reads version t, whatever D and the schedule."""

from typing import ClassVar

from pipetrain.engine.methods.base import Method
from pipetrain.engine.schedules.base import Family


class Synchronous(Method):
    """W_t for F and B alike: a flushed schedule leaves no update between them. Results do not depend on D."""

    name: ClassVar[str] = "synchronous"
    family: ClassVar[Family] = Family.SYNCHRONOUS
