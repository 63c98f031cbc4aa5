"""Runs experiments of pipeline-parallel training. What a user's own model, method, schedule or training loop needs.

Names are imported when they are asked for, so that `import pipetrain` alone imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipetrain.data.loader import Loader
    from pipetrain.errors import ConfigError
    from pipetrain.executors.hooks import RunHooks
    from pipetrain.executors.pipeline import Training, build_pipeline
    from pipetrain.executors.pipeline_rules import Phase, PipelineRules
    from pipetrain.methods.base import Method
    from pipetrain.models.chain import LayerChain
    from pipetrain.models.conversion import chain_of
    from pipetrain.optim.lr_schedules import LearningRateSchedule
    from pipetrain.optim.prediction import DeltaRule
    from pipetrain.program.drain_interval import DrainInterval
    from pipetrain.program.weight_reads import ReadContext, StageContext, WeightRead, WeightTransform
    from pipetrain.schedules.base import Family, ListSchedule, Schedule
    from pipetrain.schedules.operation import Kind, Operation
    from pipetrain.schedules.placement import Placement
    from pipetrain.weights.statistic import WeightStatistic

__version__ = "0.1.0"

_HOMES = {
    "ConfigError": "errors",
    "DeltaRule": "optim.prediction",
    "DrainInterval": "program.drain_interval",
    "Family": "schedules.base",
    "Kind": "schedules.operation",
    "LayerChain": "models.chain",
    "LearningRateSchedule": "optim.lr_schedules",
    "ListSchedule": "schedules.base",
    "Loader": "data.loader",
    "Method": "methods.base",
    "Moment": "program.weight_reads",  # former name of ReadContext
    "Operation": "schedules.operation",
    "Phase": "executors.pipeline_rules",
    "PipelineRules": "executors.pipeline_rules",
    "Placement": "schedules.placement",
    "ReadContext": "program.weight_reads",
    "RunHooks": "executors.hooks",
    "Schedule": "schedules.base",
    "StageContext": "program.weight_reads",
    "Training": "executors.pipeline",
    "WeightRead": "program.weight_reads",
    "WeightStatistic": "weights.statistic",
    "WeightTransform": "program.weight_reads",
    "build_pipeline": "executors.pipeline",
    "chain_of": "models.conversion",
}
"""Name -> the module that it is of."""

__all__ = [
    "ConfigError",
    "DeltaRule",
    "DrainInterval",
    "Family",
    "Kind",
    "LayerChain",
    "LearningRateSchedule",
    "ListSchedule",
    "Loader",
    "Method",
    "Operation",
    "Phase",
    "PipelineRules",
    "Placement",
    "ReadContext",
    "RunHooks",
    "Schedule",
    "StageContext",
    "Training",
    "WeightRead",
    "WeightStatistic",
    "WeightTransform",
    "__version__",
    "build_pipeline",
    "chain_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipetrain' has no attribute {name!r}")
    return getattr(import_module(f"pipetrain.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
