"""A command that another command starts and waits for."""

import subprocess
from collections.abc import Sequence
from types import FrameType

from pipetrain.launch.signals import handled_by


def carried_out(command: Sequence[str]) -> int:
    """The exit code of a command; the signals that would end this process are passed on to it, and it is waited for.

    It has its own process group: Ctrl-C at a terminal would reach it twice, and a second one ends a run at once.
    """

    def ignore(_number: int, _frame: FrameType | None) -> None:
        """A moment before there is a process to pass them on to."""

    with handled_by(ignore):
        process = subprocess.Popen(command, process_group=0)

        def pass_on(number: int, _frame: FrameType | None) -> None:
            process.send_signal(number)

        with handled_by(pass_on):
            return process.wait()
