"""A step of the optimizer, tried before a run: what it makes of the weights of stages, and depends on."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described
from pipetrain.engine.models.chain import trainable_weights
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.training.components.optimizer import (
    build_torch_optimizer,
    check_parameter_groups,
    parameter_groups,
)
from pipetrain.runner.training.components.stages import StagedModel


def check_optimizer(optimizer: OptimizerSettings, staged: StagedModel, device: str) -> Iterator[str]:
    """Notes on parameter groups, on options that differ between stages, and on what a step depends on."""
    yield from check_parameter_groups(optimizer, staged.chain)
    yield from check_options_of_stages(optimizer, staged)
    yield from check_step(optimizer, staged, device)


def check_options_of_stages(optimizer: OptimizerSettings, staged: StagedModel) -> Iterator[str]:
    """Notes on the delays that divide the learning rates of stages, and on the momentum of stages."""
    num_stages = len(staged.plan.bounds)
    if optimizer.lr_by_delay is not None:
        delays = [context.rate_delay for phase in staged.phases for context in phase.rules.contexts]
        divided = f"learning rates of stages are first divided by delays of {min(delays)} to {max(delays)}"
        yield f"optimizer.lr_by_delay={optimizer.lr_by_delay}: {divided if max(delays) > 1 else 'no delay above 1'}"
    if optimizer.momentum_by_stage is not None:
        first, last = (optimizer.options_of_stage(r, num_stages) for r in (0, num_stages - 1))
        shown = [f"{name} from {_momentum(first[name])} on stage 0 to {_momentum(last[name])}" for name in first]
        given = list(optimizer.momentum_by_stage)
        if staged.ties:
            raise ConfigError(
                f"optimizer.momentum_by_stage={given}: {staged.ties[0]}, whose copies of it would then differ; "
                "model.untie=true separates them"
            )
        yield f"optimizer.momentum_by_stage={given}: {', '.join(shown)} on stage {num_stages - 1}"


def _momentum(option: Any) -> str:
    return f"{option if isinstance(option, float) else option[0]:.4g}"


def try_step(
    settings: OptimizerSettings,
    weights: Mapping[str, Tensor],
    states: Mapping[str, Mapping[str, Tensor]] = {},
    *,
    device: str,
) -> dict[str, Tensor]:
    """The smallest weight of each kind after a step, which copies of them take.

    Weights are of one kind if they have the same type, parameter group, number of dimensions and state. The step is
    made on the CPU, and on the run's device only where the optimizer refuses the CPU: it would keep memory that stages
    need. Names are those of the whole model.

    Raises:
        ConfigError: the optimizer has state that checkpoints cannot hold.
        Exception: the optimizer cannot be built, or cannot take the step.
    """
    smallest = {
        (weight.dtype, settings.group_of(name, weight.dim()), weight.dim(), *sorted(states.get(name, ()))): name
        for name, weight in sorted(weights.items(), key=lambda each: -each[1].numel())
    }
    chosen = {name: weights[name] for name in smallest.values()}
    try:
        return _step_on("cpu", settings, chosen, states)
    except Exception:
        if device == "cpu":
            raise
    return _step_on(device, settings, chosen, states)


def _step_on(
    device: str, settings: OptimizerSettings, weights: Mapping[str, Tensor], states: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    chosen = {name: nn.Parameter(weight.detach().to(device, copy=True)) for name, weight in weights.items()}
    build, groups = partial(build_torch_optimizer, settings), parameter_groups(settings, chosen)
    optimizer = StageOptimizer(build, chosen, lambda _update: 0.01, groups)
    copies = {name: {key: value.clone() for key, value in states[name].items()} for name in chosen if name in states}
    optimizer.load_state(copies)
    optimizer.step({name: torch.ones_like(parameter) for name, parameter in chosen.items()})
    optimizer.state()
    return {name: parameter.detach() for name, parameter in chosen.items()}


def check_step(optimizer: OptimizerSettings, staged: StagedModel, device: str) -> Iterator[str]:
    """Warnings if a step of one weight depends on other weights of its stage, or is random; a few weights are tried."""
    weights = trainable_weights(staged.chain.module)
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            together = try_step(optimizer, weights, device=device)
            drawn = not torch.equal(torch.get_rng_state(), before)
            torch.set_rng_state(before)
            alone = _step_alone(optimizer, {name: weights[name] for name in list(together)[:1]}, device)
        except ConfigError:
            raise
        except Exception as error:  # of the optimizer's own
            raise ConfigError(f"{optimizer.target.setting}: cannot take a step: {described(error)}") from error
    kind = optimizer.target.path
    if drawn:
        differs = f"{kind} draws random numbers, which differ for each copy"
        _refuse_copies(differs, staged)
        if staged.replicas.several:
            raise ConfigError(f"optimizer: {differs}, and replicas must be equal; partition.replicas=null works")
        yield f"warning: {kind} draws random numbers, which differ from process to process: executors give other bits"
    elif any(not torch.equal(together[name].nan_to_num(), value.nan_to_num()) for name, value in alone.items()):
        depends = f"a step of {kind} for one weight depends on other weights of its stage"
        _refuse_copies(depends, staged)
        if len(staged.plan.bounds) > 1:
            yield f"warning: {depends}, so results depend on the partition"


def _step_alone(optimizer: OptimizerSettings, weights: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    """These weights after a step without the rest; none if it fails, as in optimizers that need several kinds."""
    try:
        return try_step(optimizer, weights, device=device)
    except Exception:  # of the optimizer's own
        return {}


def _refuse_copies(why: str, staged: StagedModel) -> None:
    """Raises a ConfigError if stages hold copies of a weight, which must stay equal."""
    if staged.ties:
        raise ConfigError(
            f"optimizer: {why}, and {staged.ties[0]}, and its copies must be equal; model.untie=true, or an optimizer "
            "of torch.optim, works"
        )
