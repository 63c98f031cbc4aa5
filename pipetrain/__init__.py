"""Runs experiments of pipeline-parallel training: `run`, `sweep`, `load`, and what methods and models of your own need.

Names are imported when they are asked for, so that `import pipetrain` alone imports no torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipetrain.version import __version__

if TYPE_CHECKING:
    from pipetrain.api.finished_run import Run as Run
    from pipetrain.api.finished_run import load as load
    from pipetrain.api.runs import Sweep as Sweep
    from pipetrain.api.runs import run as run
    from pipetrain.api.runs import sweep as sweep
    from pipetrain.data.loader import Loader as Loader
    from pipetrain.errors import ConfigError as ConfigError
    from pipetrain.errors import DataError as DataError
    from pipetrain.errors import RunError as RunError
    from pipetrain.executors.hooks import RunHooks as RunHooks
    from pipetrain.executors.pipeline import build_pipeline as build_pipeline
    from pipetrain.executors.pipeline_rules import Phase as Phase
    from pipetrain.executors.pipeline_rules import PipelineRules as PipelineRules
    from pipetrain.methods.base import Method as Method
    from pipetrain.models.chain import LayerChain as LayerChain
    from pipetrain.models.conversion import chain_of as chain_of
    from pipetrain.optim.lr_schedules import LearningRateSchedule as LearningRateSchedule
    from pipetrain.optim.prediction import DeltaRule as DeltaRule
    from pipetrain.program.drain_interval import DrainInterval as DrainInterval
    from pipetrain.program.weight_reads import ReadContext as ReadContext
    from pipetrain.program.weight_reads import StageContext as StageContext
    from pipetrain.program.weight_reads import WeightRead as WeightRead
    from pipetrain.program.weight_reads import WeightTransform as WeightTransform
    from pipetrain.schedules.alternation import ContinuousOneFOneB as ContinuousOneFOneB
    from pipetrain.schedules.alternation import DrainedOneFOneB as DrainedOneFOneB
    from pipetrain.schedules.base import Family as Family
    from pipetrain.schedules.base import ListSchedule as ListSchedule
    from pipetrain.schedules.base import Schedule as Schedule
    from pipetrain.schedules.operation import Kind as Kind
    from pipetrain.schedules.operation import Operation as Operation
    from pipetrain.schedules.placement import Placement as Placement
    from pipetrain.stage.base import Training as Training
    from pipetrain.tracking.callbacks import Callback as Callback
    from pipetrain.tracking.callbacks import RunInfo as RunInfo
    from pipetrain.weights.statistic import WeightStatistic as WeightStatistic

# MKL reads it once: without it, the bits of a product may depend on where its operands lie in memory
os.environ.setdefault("MKL_CBWR", "AUTO")

_HOMES = {
    "Callback": "tracking.callbacks",
    "ConfigError": "errors",
    "ContinuousOneFOneB": "schedules.alternation",
    "DataError": "errors",
    "DeltaRule": "optim.prediction",
    "DrainInterval": "program.drain_interval",
    "DrainedOneFOneB": "schedules.alternation",
    "Family": "schedules.base",
    "Kind": "schedules.operation",
    "LayerChain": "models.chain",
    "LearningRateSchedule": "optim.lr_schedules",
    "ListSchedule": "schedules.base",
    "Loader": "data.loader",
    "Method": "methods.base",
    "Operation": "schedules.operation",
    "Phase": "executors.pipeline_rules",
    "PipelineRules": "executors.pipeline_rules",
    "Placement": "schedules.placement",
    "ReadContext": "program.weight_reads",
    "Run": "api.finished_run",
    "RunError": "errors",
    "RunHooks": "executors.hooks",
    "RunInfo": "tracking.callbacks",
    "Schedule": "schedules.base",
    "StageContext": "program.weight_reads",
    "Sweep": "api.runs",
    "Training": "stage.base",
    "WeightRead": "program.weight_reads",
    "WeightStatistic": "weights.statistic",
    "WeightTransform": "program.weight_reads",
    "build_pipeline": "executors.pipeline",
    "chain_of": "models.conversion",
    "load": "api.finished_run",
    "run": "api.runs",
    "sweep": "api.runs",
}
"""Name -> the module that it is of."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipetrain' has no attribute {name!r}")
    return getattr(import_module(f"pipetrain.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
