"""What a run compiles, and that it imports no compiler where it compiles nothing."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.cli import TINY, pipetrain
from support.compiled import compiled_job
from support.worker_pool import on

from pipetrain.data.loader import Loader
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.runner.training.compilation import (
    evaluate_once,
    evaluation_sizes,
    first_minibatch,
    train_once,
    training_sizes,
)
from pipetrain.runner.training.session import training_session


@pytest.fixture
def compiled(monkeypatch):
    """The graphs that are compiled, forward and backward, by a compiler that leaves them as they are."""
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def note(graph, _inputs):
        graphs.append(graph)
        return graph

    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    yield graphs
    torch._dynamo.reset()


def compile_in_turn(session):
    """Has the stages of a simulated run compute in turn, as those of processes do."""
    data, stages = session.components.data, session.trainer.executor.stages
    sizes = training_sizes(data.train, session.components.phases), evaluation_sizes(data.evaluation)
    for of_kind, loader, compute in zip(sizes, (data.train, data.evaluation), (train_once, evaluate_once), strict=True):
        for samples in of_kind:
            tensors = tuple(x[:samples] for x in first_minibatch(loader))
            for stage in stages:
                (tensors,) = compute(stage, tensors)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "microbatches"), [("pipeoptim", 1), ("pipedream", 1), ("gpipe", 1)])
def test_run_compiles_nothing_that_was_not_compiled_ahead(tmp_path, compiled, method, microbatches):
    made = compiled_job(tmp_path, method, microbatches)
    made.run.path.mkdir(exist_ok=True)
    with training_session(on("simulated", made), RunHooks(), lambda _record: None) as session:
        with session._computing():
            compile_in_turn(session)
        ahead = len(compiled)
        assert ahead
        session.train()
    assert len(compiled) == ahead


@pytest.mark.slow
def test_run_goes_without_the_compiler(tmp_path):
    done = pipetrain("run", "executor=simulated", *TINY, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "pipetrain.runner.training.preflight" in done.stderr
    assert "torch._dynamo" not in done.stderr


class Texts:
    """Samples that their data set pads."""

    def __len__(self):
        return 4

    def collate(self, pairs):
        raise NotImplementedError


@pytest.mark.parametrize(("counts", "expected"), [([1], [2, 4]), ([2], [1, 2]), ([3, 1], [1, 2, 4])])
def test_sizes_are_those_of_all_microbatches(counts, expected):
    phases = [SimpleNamespace(rules=SimpleNamespace(num_microbatches=count)) for count in counts]
    assert training_sizes(Loader(range(10), batch_size=4, microbatches=max(counts)), phases) == expected
    assert evaluation_sizes(Loader(range(9), batch_size=4)) == [1, 4]
    padded = Loader(Texts(), batch_size=4)
    assert training_sizes(padded, phases) == evaluation_sizes(padded) == []
