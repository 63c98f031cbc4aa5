"""Runs in one process: what they trace, and what they keep."""

from support.methods import METHODS, MethodCase
from support.pipelines import batches, half_decay, sgd
from support.worker_pool import job, simulated
from torch import nn, randint, randn

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.newest_gradients import NewestGradients
from pipetrain.engine.executors.pipeline import build_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.stage.base import Training
from pipetrain.graph.conversion import chain_of
from pipetrain.reporting.timeline.from_run import read_trace
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.trace_writer import TraceFile, assemble


def test_paused_interval_is_traced_with_its_minibatches(tmp_path):
    run, gate = RunDirectory(tmp_path), AdmissionGate(alone=True)
    hooks = RunHooks(trace=TraceFile(run, 0, 0, 1), gate=gate)
    method, schedule = METHODS["pipedream"]
    rules, training = PipelineRules(schedule, method, 2, 1), Training(OptimizerFactory(sgd, half_decay), CrossEntropy())
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
    assemble(run, Placement.one_each(2))
    assert read_trace(run.trace, 2).intervals == [DrainInterval.whole(4), rest]


def test_one_stage_compares_each_gradient_at_once(tmp_path, monkeypatch):
    kept, gradients = [], NewestGradients._gradients

    def counted(self, minibatch, weights):
        kept.append(len(self._meters[0].applied))
        return gradients(self, minibatch, weights)

    monkeypatch.setattr(NewestGradients, "_gradients", counted)
    log = {"staleness_every_steps": 1, "staleness_gradient": True}
    simulated(job(tmp_path, MethodCase(Delayed(delay=2), OneFOneB(depth=1)), 1, log=log, train={"epochs": 1}))
    assert kept == [1] * 6
