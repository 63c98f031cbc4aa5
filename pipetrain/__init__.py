"""Runs experiments of pipeline-parallel training: `run`, `sweep`, `load`, and what methods and models of your own need.

Names are imported when they are asked for, so that `import pipetrain` alone imports no torch.
"""

import os
from typing import TYPE_CHECKING

from pipetrain.engine.lazy_names import lazy_names
from pipetrain.version import __version__

if TYPE_CHECKING:
    from pipetrain.data.loader import Loader as Loader
    from pipetrain.engine.errors import ConfigError as ConfigError
    from pipetrain.engine.errors import DataError as DataError
    from pipetrain.engine.errors import RunError as RunError
    from pipetrain.engine.executors.hooks import RunHooks as RunHooks
    from pipetrain.engine.executors.pipeline import build_pipeline as build_pipeline
    from pipetrain.engine.executors.pipeline_rules import Phase as Phase
    from pipetrain.engine.executors.pipeline_rules import PipelineRules as PipelineRules
    from pipetrain.engine.methods.base import Method as Method
    from pipetrain.engine.models.chain import LayerChain as LayerChain
    from pipetrain.engine.optim.lr_schedule import LearningRateSchedule as LearningRateSchedule
    from pipetrain.engine.optim.optimizer_factory import OptimizerFactory as OptimizerFactory
    from pipetrain.engine.optim.prediction import DeltaRule as DeltaRule
    from pipetrain.engine.program.drain_interval import DrainInterval as DrainInterval
    from pipetrain.engine.program.weight_reads import ReadContext as ReadContext
    from pipetrain.engine.program.weight_reads import StageContext as StageContext
    from pipetrain.engine.program.weight_reads import WeightRead as WeightRead
    from pipetrain.engine.program.weight_reads import WeightTransform as WeightTransform
    from pipetrain.engine.schedules.alternation import ContinuousOneFOneB as ContinuousOneFOneB
    from pipetrain.engine.schedules.alternation import DrainedOneFOneB as DrainedOneFOneB
    from pipetrain.engine.schedules.base import Family as Family
    from pipetrain.engine.schedules.base import ListSchedule as ListSchedule
    from pipetrain.engine.schedules.base import Schedule as Schedule
    from pipetrain.engine.schedules.operation import Kind as Kind
    from pipetrain.engine.schedules.operation import Operation as Operation
    from pipetrain.engine.schedules.placement import Placement as Placement
    from pipetrain.engine.stage.base import Training as Training
    from pipetrain.engine.weights.statistic import WeightStatistic as WeightStatistic
    from pipetrain.graph.conversion import chain_of as chain_of
    from pipetrain.runner.api.finished_run import Run as Run
    from pipetrain.runner.api.finished_run import load as load
    from pipetrain.runner.api.runs import Sweep as Sweep
    from pipetrain.runner.api.runs import run as run
    from pipetrain.runner.api.runs import sweep as sweep
    from pipetrain.runner.tracking.callbacks import Callback as Callback
    from pipetrain.runner.tracking.callbacks import RunInfo as RunInfo
    from pipetrain.zoo.messages.base import Direction as Direction
    from pipetrain.zoo.messages.base import MessageFormat as MessageFormat
    from pipetrain.zoo.messages.base import MessageTensor as MessageTensor

# MKL reads it once: without it, the bits of a product may depend on where its operands lie in memory
os.environ.setdefault("MKL_CBWR", "AUTO")

_HOMES = {
    "Callback": "runner.tracking.callbacks",
    "ConfigError": "engine.errors",
    "ContinuousOneFOneB": "engine.schedules.alternation",
    "DataError": "engine.errors",
    "DeltaRule": "engine.optim.prediction",
    "Direction": "zoo.messages.base",
    "DrainInterval": "engine.program.drain_interval",
    "DrainedOneFOneB": "engine.schedules.alternation",
    "Family": "engine.schedules.base",
    "Kind": "engine.schedules.operation",
    "LayerChain": "engine.models.chain",
    "LearningRateSchedule": "engine.optim.lr_schedule",
    "ListSchedule": "engine.schedules.base",
    "Loader": "data.loader",
    "MessageFormat": "zoo.messages.base",
    "MessageTensor": "zoo.messages.base",
    "Method": "engine.methods.base",
    "Operation": "engine.schedules.operation",
    "OptimizerFactory": "engine.optim.optimizer_factory",
    "Phase": "engine.executors.pipeline_rules",
    "PipelineRules": "engine.executors.pipeline_rules",
    "Placement": "engine.schedules.placement",
    "ReadContext": "engine.program.weight_reads",
    "Run": "runner.api.finished_run",
    "RunError": "engine.errors",
    "RunHooks": "engine.executors.hooks",
    "RunInfo": "runner.tracking.callbacks",
    "Schedule": "engine.schedules.base",
    "StageContext": "engine.program.weight_reads",
    "Sweep": "runner.api.runs",
    "Training": "engine.stage.base",
    "WeightRead": "engine.program.weight_reads",
    "WeightStatistic": "engine.weights.statistic",
    "WeightTransform": "engine.program.weight_reads",
    "build_pipeline": "engine.executors.pipeline",
    "chain_of": "graph.conversion",
    "load": "runner.api.finished_run",
    "run": "runner.api.runs",
    "sweep": "runner.api.runs",
}
"""Name -> the module that it is of."""

__all__ = ["__version__", *_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
