"""The one registry of methods under test: each with its schedule, as objects and as configuration."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any, NamedTuple

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods import Method
from pipetrain.engine.methods.i_timeprest import ITiMePReSt
from pipetrain.engine.methods.lwp import LinearWeightPrediction
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipedream_2bw import PipeDream2BW
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.spectrain import SpecTrain
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.methods.timeprest import TiMePReSt, VTiMePReSt
from pipetrain.engine.schedules import Schedule
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneB2BW, OneFOneBFlush
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.sequential import Sequential


class MethodCase(NamedTuple):
    """A method under a schedule that it goes with."""

    method: Method
    schedule: Schedule

    @classmethod
    def named(cls, case: "str | MethodCase") -> "MethodCase":
        """A case of the registry by its name; any other case is returned as it is."""
        return METHODS[case] if isinstance(case, str) else case

    def sections(self) -> dict[str, dict[str, Any]]:
        """The sections of the configuration that choose this method and this schedule."""
        return {"method": _section(self.method), "schedule": _section(self.schedule)}


def _section(chosen: Method | Schedule) -> dict[str, Any]:
    kind = type(chosen)
    names = [field.name for field in fields(chosen) if field.init] if is_dataclass(chosen) else []
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **{name: getattr(chosen, name) for name in names}}


METHODS = {
    "sequential": MethodCase(Synchronous(), Sequential()),
    "gpipe": MethodCase(Synchronous(), GPipe()),
    "pipedream_flush": MethodCase(Synchronous(), OneFOneBFlush()),
    "naive_async": MethodCase(NaiveAsync(), OneFOneB()),
    "pipedream": MethodCase(PipeDream(), OneFOneB()),
    "vertical_sync": MethodCase(PipeDream(vertical_sync=True), OneFOneB()),
    "pipeoptim": MethodCase(PipeOptim(), OneFOneB()),
    "pipedream_2bw": MethodCase(PipeDream2BW(), OneFOneB2BW()),
    "spectrain": MethodCase(SpecTrain(), OneFOneB()),
    "stale": MethodCase(Stale(), PipelinedBackprop()),
    "pipemare_plain": MethodCase(PipeMare(t1=False, t2=False), PipeMareSchedule()),
    "pipemare_t1": MethodCase(PipeMare(t2=False, anneal_steps=7), PipeMareSchedule()),
    "pipemare_t2": MethodCase(PipeMare(t1=False, decay=0.3), PipeMareSchedule()),
    "pipemare": MethodCase(PipeMare(anneal_steps=7, decay=0.3), PipeMareSchedule()),
    "timeprest": MethodCase(TiMePReSt(), NF1B()),
    "v_timeprest": MethodCase(VTiMePReSt(), NF1B()),
    "i_timeprest": MethodCase(ITiMePReSt(staleness_decay=0.05), NF1B()),
    "pipedream_pipemare": MethodCase(PipeDream(), PipeMareSchedule()),
    "pipeoptim_backprop": MethodCase(PipeOptim(), PipelinedBackprop()),
    "lwp_stash": MethodCase(LinearWeightPrediction(stash=True), OneFOneB()),
    "spectrain_depth": MethodCase(SpecTrain(), OneFOneB(depth=6)),
}
"""What the tests call a method -> the method and its schedule. `reference.FORMULAS` has the formulas of each."""

VARIANTS = ("pipemare_plain", "pipemare_t1", "pipemare_t2", "pipeoptim_backprop", "lwp_stash", "spectrain_depth")
"""Methods of the registry under other settings or schedules; tests of processes, which are slow, leave them out."""
DISTINCT = tuple(name for name in METHODS if name not in VARIANTS)
SYNCHRONOUS = ("sequential", "gpipe", "pipedream_flush")
ASYNCHRONOUS = tuple(name for name in METHODS if name not in SYNCHRONOUS)
STALE_ALONE = ("pipedream_2bw", "pipemare_plain", "pipemare_t1", "pipemare_t2", "pipemare", "pipedream_pipemare")
"""Those under which one stage by itself is stale: an update of its own lies between F and B."""


def fitting(case: str | MethodCase, num_stages: int, num_microbatches: int) -> bool:
    """Whether the schedule takes so many stages and microbatches."""
    return takes(MethodCase.named(case).schedule, num_stages, num_microbatches)


def takes(schedule: Schedule, num_stages: int, num_microbatches: int) -> bool:
    """True if a schedule runs on so many stages with so many microbatches."""
    try:
        schedule.check(num_stages, num_microbatches)
    except ConfigError:
        return False
    return True


def fitting_cases(
    names: Iterable[str] = tuple(METHODS), stages: Iterable[int] = (1, 2, 3, 4), microbatches: Iterable[int] = (1, 2, 4)
) -> list[tuple[str, int, int]]:
    """(name, D, N) for all of them that fit."""
    return [each for each in product(names, stages, microbatches) if fitting(*each)]
