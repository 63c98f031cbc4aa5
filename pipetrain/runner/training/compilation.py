"""Compiles a stage's layers before the stages are connected.

Compilation times kernels and loads them, and both wait for the whole device: in the middle of a run over NCCL, two
neighbors that find a shape at the same time would wait for each other's messages.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from pipetrain.engine.data.minibatches import Minibatches, microbatch_sizes
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.links import LinkGroups, Links
from pipetrain.engine.executors.messages.p2p import Incoming, Outgoing
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.stage.module import non_leaf_inputs
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors, dense_copy

Compute = Callable[[Stage, Tensors], Iterator[Tensors]]
"""(a stage, its inputs) -> its outputs, once, as soon as they are known."""


def compile_ahead(
    stage: Stage, phases: Sequence[Phase], train: Minibatches, evaluation: Minibatches, hooks: RunHooks
) -> None:
    """Has the layers of all stages compute once for each shape of a run; each process calls it for its stage.

    Shapes that vary are unknown: kernels for them are chosen without timing them. No state of a stage changes.
    """
    if train.varying or evaluation.varying:
        torch._inductor.config.deterministic = True
    relay = _Relay(stage, phases[0].rules.replicas, hooks)
    for what, loader, sizes, compute in (
        ("training", train, training_sizes(train, phases), train_once),
        ("evaluation", evaluation, evaluation_sizes(evaluation), evaluate_once),
    ):
        inputs = first_minibatch(loader) if sizes and stage.index == 0 else ()
        for samples in sizes:
            hooks.on_progress(f"compiling the layers for {what} with {samples} samples")
            relay.carry(tuple(tensor[:samples].to(stage.device) for tensor in inputs), compute)
    relay.end()


def training_sizes(loader: Minibatches, phases: Sequence[Phase]) -> list[int]:
    """The numbers of samples of a run's microbatches; empty if shapes vary otherwise."""
    if loader.varying:
        return []
    counts = {phase.rules.num_microbatches for phase in phases}
    return sorted({size for n in loader.sizes(0) for count in counts for size in microbatch_sizes(n, count)})


def evaluation_sizes(loader: Minibatches) -> list[int]:
    """The numbers of samples of the parts of an evaluation; empty if shapes vary otherwise."""
    return [] if loader.varying else sorted(set(loader.sizes(0)))


def train_once(stage: Stage, inputs: Tensors) -> Iterator[Tensors]:
    """Yields the outputs of a forward as in training, then carries out its backward."""
    leaves = stage.leaves(stage.weights.newest.tensors)
    differentiable = [x for x in inputs if x.is_floating_point()] if stage.index else []
    with stage.module.scratch_buffers(), stage.carried.aside({}), stage.module.using_weights(leaves):
        for forward in range(_forwards(stage)):
            arrived, _ = non_leaf_inputs(inputs, differentiable)
            outputs: Tensors = stage.module(*arrived, microbatch=(0, 0))
            if forward == 0:
                yield tuple(dense_copy(output.detach()) for output in outputs)
            if learned := [output for output in outputs if output.requires_grad]:
                torch.autograd.backward(learned, list(map(torch.zeros_like, learned)))


def evaluate_once(stage: Stage, inputs: Tensors) -> Iterator[Tensors]:
    """Yields the outputs of an evaluation, then evaluates with the leaves that training may put for parameters."""
    stage.carried.evaluated = {}
    for forward in range(_forwards(stage)):
        outputs = stage.evaluate(inputs)
        if forward == 0:
            yield outputs
    stage.carried.evaluated = {}
    with stage.module.using_weights(stage.leaves(stage.weights.newest.tensors)):
        for _ in range(_forwards(stage)):
            stage.evaluate(inputs)
    stage.carried.evaluated = {}


def _forwards(stage: Stage) -> int:
    """Two if the first leaves state for the next."""
    return 2 if stage.carried.names else 1


class _Relay:
    """Passes samples forward through the stages, in host memory; a stage's first replica sends to all of the next."""

    def __init__(self, stage: Stage, replicas: Replicas, hooks: RunHooks) -> None:
        self._stage = stage
        links, world = Links(Transport(stage.device), hooks.waiting), dist.group.WORLD
        assert world is not None, "torch.distributed is initialized"
        groups, last = LinkGroups(world, world), len(replicas.counts) - 1
        self._incoming: Incoming | None = None
        self._outgoing: list[Outgoing] = []
        if stage.index > 0:
            peer = replicas.workers_of(stage.index - 1)[0]
            self._incoming = Incoming(links.to(peer, stage.index - 1, groups), f"outputs of {replicas.name(peer)}")
        if stage.index < last and stage.replica == 0:
            for peer in replicas.workers_of(stage.index + 1):
                link = links.to(peer, stage.index + 1, groups)
                self._outgoing.append(Outgoing(link, f"outputs to {replicas.name(peer)}"))

    def carry(self, inputs: Tensors, compute: Compute) -> None:
        """Has this stage compute and sends its outputs on; `inputs` are for the first stage, and any other receives."""
        if self._incoming is not None:
            self._incoming.expect([None])
            inputs = self._incoming.take()
        for outputs in compute(self._stage, inputs):
            for outgoing in self._outgoing:
                outgoing.send(None, outputs)

    def end(self) -> None:
        """Waits until the next stage has taken every message."""
        for outgoing in self._outgoing:
            outgoing.settle(0)


def first_minibatch(loader: Minibatches) -> Tensors:
    """The inputs of the first minibatch of an epoch, which is one of the largest."""
    return loader.finish(next(loader.without_workers().inputs(0, 0, 1)))
