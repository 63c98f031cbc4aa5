"""Pipeline-parallel training as a library: schedules, methods, weights, stages, executors, losses.

Needs torch and numpy alone, and imports no other room of pipetrain. Names are imported when they are asked for.
"""

from typing import TYPE_CHECKING

from pipetrain.engine.lazy_names import lazy_names

if TYPE_CHECKING:
    from pipetrain.engine.arithmetic import ComputeOptions as ComputeOptions
    from pipetrain.engine.losses.cross_entropy import CrossEntropy as CrossEntropy
    from pipetrain.engine.losses.cross_entropy import TokenCrossEntropy as TokenCrossEntropy
    from pipetrain.engine.methods.base import Method as Method
    from pipetrain.engine.methods.naive_async import NaiveAsync as NaiveAsync
    from pipetrain.engine.methods.pipedream import PipeDream as PipeDream
    from pipetrain.engine.methods.pipedream_2bw import PipeDream2BW as PipeDream2BW
    from pipetrain.engine.methods.pipemare import PipeMare as PipeMare
    from pipetrain.engine.methods.pipeoptim import PipeOptim as PipeOptim
    from pipetrain.engine.methods.spectrain import SpecTrain as SpecTrain
    from pipetrain.engine.methods.synchronous import Synchronous as Synchronous
    from pipetrain.engine.models.chain import LayerChain as LayerChain
    from pipetrain.engine.pipeline import Pipeline as Pipeline
    from pipetrain.engine.schedules.base import ListSchedule as ListSchedule
    from pipetrain.engine.schedules.gpipe import GPipe as GPipe
    from pipetrain.engine.schedules.one_f_one_b import OneFOneB as OneFOneB
    from pipetrain.engine.schedules.one_f_one_b import OneFOneB2BW as OneFOneB2BW
    from pipetrain.engine.schedules.one_f_one_b import OneFOneBFlush as OneFOneBFlush
    from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule as PipeMareSchedule

_HOMES = {
    "ComputeOptions": "arithmetic",
    "CrossEntropy": "losses.cross_entropy",
    "GPipe": "schedules.gpipe",
    "LayerChain": "models.chain",
    "ListSchedule": "schedules.base",
    "Method": "methods.base",
    "NaiveAsync": "methods.naive_async",
    "OneFOneB": "schedules.one_f_one_b",
    "OneFOneB2BW": "schedules.one_f_one_b",
    "OneFOneBFlush": "schedules.one_f_one_b",
    "PipeDream": "methods.pipedream",
    "PipeDream2BW": "methods.pipedream_2bw",
    "PipeMare": "methods.pipemare",
    "PipeMareSchedule": "schedules.pipelined_backprop",
    "PipeOptim": "methods.pipeoptim",
    "Pipeline": "pipeline",
    "SpecTrain": "methods.spectrain",
    "Synchronous": "methods.synchronous",
    "TokenCrossEntropy": "losses.cross_entropy",
}
"""Name -> the module that it is of."""

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
