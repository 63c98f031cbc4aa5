"""I-TiMePReSt: what it tells the user, and the range of its decay."""

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.i_timeprest import ITiMePReSt
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin


def test_i_timeprest_reports_its_change_and_warns_if_large():
    contexts = [StageContext(r, 4, 1, 3 - r, 3) for r in range(4)]
    (line,) = ITiMePReSt(0.1).notes(contexts)
    assert "method.staleness_decay=0.1" in line
    assert "0.6501" in line
    assert "warning" not in line
    (_, warning) = ITiMePReSt(0.2).notes(contexts)
    assert warning.startswith("warning")
    assert "0.1779 of stage 0" in warning


def test_i_timeprest_names_the_stage_with_the_largest_delay():
    rules = PipelineRules(RoundRobin(NF1B(), Replicas((4, 1, 1, 1))), ITiMePReSt(0.4), 4, 1)
    assert [context.delay for context in rules.contexts] == [1, 2, 1, 0]
    assert "-0.2255 of stage 1" in rules.method.notes(rules.contexts)[1]


def test_i_timeprest_warns_of_a_decay_whose_factor_no_float_holds():
    (_, warning) = ITiMePReSt(1000.0).notes([StageContext(0, 4, 1, 3, 3)])
    assert "of stage 0 is below" in warning
