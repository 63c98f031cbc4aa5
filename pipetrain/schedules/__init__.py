"""When each stage does what: one small file for each family of operation lists. No torch here."""

from pipetrain.schedules.base import ListSchedule, Schedule
from pipetrain.schedules.operation import Kind, Operation
from pipetrain.schedules.placement import Placement
from pipetrain.schedules.replicas import Replicas

__all__ = ["Kind", "ListSchedule", "Operation", "Placement", "Replicas", "Schedule"]
