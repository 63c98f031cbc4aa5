"""All stages in one process: what it writes down of them."""

from support.methods import METHODS
from support.pipelines import batches, half_decay, sgd
from torch import nn, randint, randn

from pipetrain.executors.admission_gate import AdmissionGate
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.pipeline import build_pipeline
from pipetrain.executors.pipeline_rules import PipelineRules
from pipetrain.losses import CrossEntropy
from pipetrain.models.conversion import chain_of
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.report.timeline.from_run import read_trace
from pipetrain.stage.base import Training
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.trace_writer import TraceFile, assemble


def test_paused_interval_is_traced_with_its_minibatches(tmp_path):
    run, gate = RunDirectory(tmp_path), AdmissionGate(alone=True)
    hooks = RunHooks(trace=TraceFile(run, 0, 0, 1), gate=gate)
    method, schedule = METHODS["pipedream"]
    rules, training = PipelineRules(schedule, method, 2, 1), Training(sgd, half_decay, CrossEntropy())
    executor = build_pipeline(
        chain_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))), [(0, 1), (1, 2)], rules, training, hooks
    )
    loader = batches(randn(12, 3), randint(0, 2, (12,)), 2)
    gate.hold()
    gate.shut(4)
    executor.train(loader, DrainInterval.whole(6))
    gate.open()
    rest = DrainInterval(epoch=0, first=4, last=6, start=4)
    executor.train(loader, rest)
    hooks.trace.close()
    assemble(run, ["stage 0", "stage 1"])
    assert read_trace(run.trace, 2).intervals == [DrainInterval.whole(4), rest]
