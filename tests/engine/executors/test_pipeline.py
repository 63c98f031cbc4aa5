"""From a layer chain to stages and executors."""

import torch
from support import small_model
from support.pipelines import batches, sgd

from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.pipeline import build_pipeline, build_stages
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.stage.base import Training

TRAINING = Training(OptimizerFactory(sgd, lambda _k: 0.1), CrossEntropy(), seed=3)
RULES = PipelineRules(OneFOneB(), PipeDream(), 3, 1)


def chain():
    torch.manual_seed(0)
    return small_model.build(1, 4)


def losses(rules):
    found = []
    hooks = RunHooks(lambda _t, value: found.append(value.mean.item()))
    pipeline = build_pipeline(chain(), small_model.bounds(3), rules, TRAINING, hooks)
    torch.manual_seed(1)
    loader = batches(torch.randn(12, 1, 8, 8), torch.arange(12) % 4, 4)
    pipeline.train(loader, DrainInterval.whole(3))
    return found


def test_stages_asked_for_are_those_of_the_whole_pipeline():
    every = build_stages(chain(), small_model.bounds(3), TRAINING)
    assert [stage.index for stage in every] == [0, 1, 2]
    names = [set(stage.state()) for stage in every]
    assert set.union(*names) == set(chain().module.state_dict())
    assert sum(map(len, names)) == len(set.union(*names))
    (last,) = build_stages(chain(), small_model.bounds(3), TRAINING, [2])
    assert last.index == 2
    assert all(torch.equal(last.state()[name], tensor) for name, tensor in every[2].state().items())
