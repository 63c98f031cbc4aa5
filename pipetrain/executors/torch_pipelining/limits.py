"""Settings that do not work with the schedules that torch's library runs."""

from collections.abc import Sequence

import torch

from pipetrain.config.settings import Settings
from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.schedules import ListSchedule, Placement, Schedule
from pipetrain.schedules.torch_library import TorchSchedule


def common_placement(schedules: Sequence[Schedule], num_stages: int) -> Placement:
    """Assignment of stages to processes.

    Raises:
        ConfigError: the phases differ; stages stay where they are.
    """
    first = schedules[0]
    for other in schedules[1:]:
        alike = isinstance(other, ListSchedule) == isinstance(first, ListSchedule)
        if not alike or other.placement(num_stages) != first.placement(num_stages):
            raise ConfigError(
                f"phases: schedule={first.name} and schedule={other.name} place the stages in other processes, and "
                "stages stay where they are; take schedules of one placement, or a run for each that resumes the other"
            )
    return first.placement(num_stages)


def check_unlisted(settings: Settings, schedule: Schedule, loader: Loader) -> None:
    """Checks the settings against the limits of torch's library.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    train, name = settings.train, f"schedule={schedule.name}"
    library = "is run by torch.distributed.pipelining"
    if settings.executor.simulated:
        raise ConfigError(
            f"executor=simulated: {name} {library}, between processes; use executor=distributed, or schedule=gpipe, "
            "which computes the same"
        )
    if settings.trace:
        raise ConfigError(f"trace=true: {name} {library}, which does not show its operations; leave trace out")
    if train.recompute or train.recompute_boundaries is not None:
        raise ConfigError(f"train.recompute: {name} {library}, which keeps all activations; leave it out")
    if loader.varying:
        raise ConfigError(
            f"{name} {library}, which takes minibatches of one shape only, and those of "
            f"{type(loader.dataset).__name__} vary; schedule=1f1b_flush takes them"
        )
    sizes = loader.sizes(0)
    uneven = [size for size in sizes if size % train.microbatches]
    if uneven:
        rest = uneven[0] % train.microbatches
        raise ConfigError(
            f"train.microbatches={train.microbatches}: the last minibatch of an epoch has {uneven[0]} samples, and "
            f"{name} takes microbatches of equal size only; dataset.limit={sum(sizes) - rest} leaves {rest} out"
        )


def notes_of(schedule: Schedule, placement: Placement) -> list[str]:
    """Notes to print before a run under such a schedule, one line each."""
    processes = ", ".join(placement.name(process) for process in range(placement.num_processes))
    notes = [f"{placement.num_processes} process{'es' * (placement.num_processes > 1)}: {processes}"]
    if isinstance(schedule, TorchSchedule) and schedule.splits_backward and torch.__version__ < "2.13":
        notes.append(
            f"warning: schedule={schedule.name} splits the backward pass, and torch {torch.__version__} then computes "
            "wrong gradients for layers that use a weight twice; upgrade to torch 2.13"
        )
    return notes
