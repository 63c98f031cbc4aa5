"""When each stage does what: operation lists, their validation, and what can be read off them. No torch here."""

from pipetrain.schedules.base import Schedule
from pipetrain.schedules.operation import Kind, Operation
from pipetrain.schedules.readings import Moment, Read, Readings, readings

__all__ = ["Kind", "Moment", "Operation", "Read", "Readings", "Schedule", "readings"]
