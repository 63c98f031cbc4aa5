"""Panels of a timeline to draw."""

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.program.playback import play, unit_duration
from pipetrain.engine.schedules import Operation
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.reporting.timeline.panels import Box, Panel, boxes


def panel(title="a", D=2, N=1, M=3, start=0):
    rules = PipelineRules(OneFOneB(), NaiveAsync(), D, N)
    played = play(rules.lists(M), unit_duration)
    rows = boxes(rules, played, M, start)
    return Panel(title, N, "", rows, 0.0, max(row[-1].end for row in rows))


def box(name, start, end):
    return Box(Operation.parse(name), "v0", 0, start, end)
