"""`partition=auto`: the cuts of a run, planned with a profile before it starts, and kept whenever it resumes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, check_flag, check_whole
from pipetrain.engine.models.cuts import unit_starts
from pipetrain.engine.processes import usable_cores
from pipetrain.graph.layer_costs import WEIGHT_BYTES_PER_SECOND
from pipetrain.planning.costs.memory import MemoryModel
from pipetrain.planning.costs.topology import Topology, check_parts, core_notes, topology_of
from pipetrain.planning.partition.automatic import PlannedPartition, merge_layers
from pipetrain.planning.pipeline_plan import PipelinePlan
from pipetrain.planning.planner import Planner, recomputed
from pipetrain.planning.profile.profile import Profile
from pipetrain.planning.profiling.profile import profile_of_chain
from pipetrain.runner.config.schema import TopologyConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.config.settings_diff import changes_since
from pipetrain.runner.partition.run_plan import Plan, Unplanned
from pipetrain.runner.training.checkpoint.store import load_config, load_progress
from pipetrain.runner.training.components.pipeline import build_pipeline_rules, build_schedule
from pipetrain.runner.training.components.weight_traffic import passes_of_run

_GIGA = 1e9
_DECIDING = ("partition", "planner", "topology", "profile")
"""Sections and settings whose change makes a resumed run plan again, unless what changed affects no weights."""


@dataclass(frozen=True)
class AutoPartition:
    """Request for the cuts with which a pipeline is fastest by a profile.

    Attributes:
        stages: None: the fastest number.
        replicated: True if stages may have replicas; their numbers are then planned, too.

    Raises:
        ConfigError: `stages` is not a whole number of at least 1, or is given together with `replicated`.
    """

    stages: int | None = None
    replicated: bool = False

    def __post_init__(self) -> None:
        check_flag("partition.replicated", self.replicated)
        if self.stages is None:
            return
        check_whole("partition.stages", self.stages, least=1, otherwise="or null for the fastest number")
        if self.replicated:
            raise ConfigError(
                f"partition.stages={self.stages} with partition.replicated=true: the plan says how many stages; leave "
                "it out, and say in topology.devices for how many devices"
            )

    def plan_of(self, run: Unplanned) -> Plan:
        """The plan with these cuts, and the profiled times of the stages.

        Raises:
            ConfigError: the model cannot be cut so often, no pipeline fits into the devices' memory, or an outer
                launcher has started the processes, each of which would measure other times.
        """
        cuts, notes = plan_cuts(self, run)
        return replace(cuts.timed(run.cut_by(cuts)), measured=True, notes=tuple(notes))


def plan_cuts(wanted: AutoPartition, run: Unplanned) -> tuple[PlannedPartition, list[str]]:
    """Cuts of the model, with notes for the user.

    A run that continues from a checkpoint keeps its cuts, and nothing is measured again.

    Raises:
        ConfigError: the model cannot be cut so often, no pipeline fits into the devices' memory, or an outer launcher
            has started the processes, each of which would measure other times.
    """
    settings, resume = run.settings, run.resume
    stored = None if resume is None else stored_cuts(settings, resume)
    if outer_launcher.is_present():
        instead = "partition=file takes a plan of `pipetrain plan`, and partition=explicit its cuts"
        if stored is not None:
            instead = f"those of {resume} are {_as_words(stored)}"
        raise ConfigError(
            "partition=auto: each of the processes that an outer launcher started would plan by times of its own; "
            f"{instead}"
        )
    if stored is not None:
        return stored, [f"partition=auto: keeps the cuts of {resume}"]
    starts = unit_starts(len(run.chain), run.chain.tied(buffers_alone=run.shares_weights))
    counts = _numbers_of_devices(settings, wanted, len(starts))
    profile = profile_of_chain(settings, run.data, run.chain)
    parts = merge_layers(profile, starts)
    best = _fastest(parts, settings, counts, straight=not wanted.replicated)
    cuts = [starts[stage.layers[0]] for stage in best.stages[1:]]
    trained = recomputed(parts, settings.train)
    timed = with_updates(trained, settings, best.num_devices, straight=not wanted.replicated)
    seconds = [sum(timed.layers[i].compute_s for i in stage.layers) for stage in best.stages]
    replicas = tuple(stage.replicas for stage in best.stages)
    notes, processes = [_account(settings, profile, best, cuts, counts)], best.num_devices
    if not (settings.executor.simulated or _on_cuda(settings)):
        topology = topology_of(settings, profile, processes)
        notes += core_notes(settings, profile, topology, processes, otherwise=usable_cores())
    return PlannedPartition(cuts, seconds, replicas), notes


def plan_by(settings: Settings, wanted: AutoPartition, profile: Profile) -> PipelinePlan:
    """The pipeline that `partition=auto` would find by a profile, which knows no buffers that layers share.

    Raises:
        ConfigError: the layers cannot be cut so often, or no pipeline fits into the devices' memory.
    """
    most = profile.most_stages(together=MemoryModel.of(settings).flows)
    counts = _numbers_of_devices(settings, wanted, most)
    return _fastest(profile, settings, counts, straight=not wanted.replicated)


def with_updates(profile: Profile, settings: Settings, devices: int, *, straight: bool = True) -> Profile:
    """The profile with each layer's share of the update in its backward, in the phase with the longest update.

    All stages count alike, by the passes that each of them makes: copies and predictions of some alone are left out.
    Each device has a stage, unless `partition.replicas` says otherwise. If not `straight`, the number of stages is not
    known yet; if schedule or method cannot run with one stage per device, the profile stays as it is.

    Raises:
        ConfigError: a schedule or a method cannot run on this number of stages.
    """
    if not (pass_s := update_seconds_per_byte(settings, profile)):
        return profile
    counts = settings.replicas.counts
    try:
        stages = len(counts) if counts is not None else stages_on(settings, devices)
        rules = [build_pipeline_rules(phase, stages, settings.train.microbatches, None) for phase in settings.phases]
    except ConfigError:
        if straight:
            raise
        return profile
    update_s = pass_s * max(min(passes_of_run(settings, each)) for each in rules)
    return replace(
        profile,
        layers=tuple(
            replace(layer, backward_s=layer.backward_s + update_s * layer.trainable_bytes) for layer in profile.layers
        ),
    )


def stages_on(settings: Settings, devices: int) -> int:
    """Number of stages of a pipeline without replicas on so many devices."""
    return sum(map(len, MemoryModel.of(settings).placement(devices).stages_of))


def update_seconds_per_byte(settings: Settings, profile: Profile) -> float:
    """Seconds of a pass over a byte of the weights on the device of a profile; 0 if the device's speed is unknown."""
    if (given := settings.topology.update_gigabytes_per_s) is not None:
        return 1 / (given * _GIGA)
    if (measured := profile.update_bytes_per_s) is not None:
        return 1 / measured
    return 1 / WEIGHT_BYTES_PER_SECOND if profile.provenance.get("device") == "cpu" else 0.0


def stored_cuts(settings: Settings, resume: Path) -> PlannedPartition | None:
    """The cuts that the resumed checkpoint was trained with; None if none were planned, or others are asked for."""
    changes = changes_since(load_config(resume), settings)
    if any(each.changes_weights and each.setting.partition(".")[0] in _DECIDING for each in changes):
        return None
    progress = load_progress(resume)
    stages = progress.get("planned_stages")
    return _planned(stages, progress.get("replicas")) if stages else None


def _as_words(cuts: PlannedPartition) -> str:
    """The settings that give the same cuts."""
    words = [
        "partition=explicit",
        f"partition.stages={len(cuts.seconds)}",
        f"partition.boundaries={[*cuts.boundaries]}",
    ]
    if max(cuts.replicas) > 1:
        words.append(f"partition.replicas={[*cuts.replicas]}")
    return " ".join(words)


def _planned(stages: Sequence[Mapping[str, Any]], replicas: Sequence[int] | None) -> PlannedPartition:
    seconds = [stage["estimated_seconds"] for stage in stages]
    return PlannedPartition([stage["first"] for stage in stages[1:]], seconds, tuple(replicas or (1 for _ in stages)))


def _numbers_of_devices(settings: Settings, wanted: AutoPartition, most: int) -> list[int]:
    """Device counts to try; a straight pipeline has one stage per device, and at most `most` stages."""
    topology, stages, on_each = settings.topology, wanted.stages, stages_on(settings, 1)
    if (counts := settings.replicas.counts) is not None:
        _check_counts(counts, wanted)
        check_parts(counts, most)
        return [sum(counts)]
    if stages is None:
        here = _devices_of(topology) or _devices_found(settings)
        most = here if wanted.replicated else max(1, most // on_each)
        return [here] if _lists_devices(topology) else list(range(min(2, here, most), min(here, most) + 1))
    if stages > most:
        raise ConfigError(
            f"partition.stages={stages}: the model has {most} parts that can be cut apart; at most {most} stages"
        )
    schedule = build_schedule(settings.phases[0])
    schedule.check(stages, settings.train.microbatches)
    needed = schedule.placement(stages).num_processes
    if topology.devices is None and topology.workers is None:
        topology = replace(topology, devices=needed)
    if (devices := _devices_of(topology)) not in (None, needed):
        takes = "each stage takes one" if needed == stages else f"the stages take {needed}"
        raise ConfigError(
            f"partition.stages={stages}: `topology` has {devices} devices, and {takes}; leave one of the two out"
        )
    return [needed]


def _check_counts(counts: Sequence[int], wanted: AutoPartition) -> None:
    setting = f"partition.replicas={list(counts)}"
    if wanted.replicated:
        raise ConfigError(f"{setting} with partition.replicated=true: the latter plans them; leave one out")
    if wanted.stages not in (None, len(counts)):
        raise ConfigError(f"{setting} with partition.stages={wanted.stages}: must have a number for each stage")


def _lists_devices(topology: TopologyConfig) -> bool:
    """True if `topology` names every device, so that their number is fixed."""
    return any(isinstance(each, list) for each in (topology.workers, topology.speeds, topology.memory_gigabytes))


def _devices_of(topology: TopologyConfig) -> int | None:
    """Number of devices of `topology`; None if it does not say."""
    if topology.devices is None and not _lists_devices(topology):
        return None
    return Topology.of(replace(topology, gigabytes_per_s=None), 1.0).num_devices


def _devices_found(settings: Settings) -> int:
    """Devices of this machine; at least two on the CPU, so that there is a pipeline."""
    return max(1, torch.cuda.device_count()) if _on_cuda(settings) else max(2, usable_cores())


def _on_cuda(settings: Settings) -> bool:
    return settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())


def _fastest(profile: Profile, settings: Settings, counts: Sequence[int], *, straight: bool) -> PipelinePlan:
    """The best pipeline on one of these numbers of devices; of equally good ones, that with fewest devices."""
    plans, problem = [], None
    for devices in counts:
        planned_for = settings
        if settings.replicas.counts is None:  # otherwise `Planner` counts these
            given = settings.topology
            section = given if given.workers else replace(given, devices=devices)
            search = replace(settings.planner, straight=straight or settings.planner.straight)
            planned_for = replace(settings, topology=section, planner=search)
        try:
            timed = with_updates(profile, settings, devices, straight=straight)
            plans.append(Planner.of(timed, planned_for).best())
        except ConfigError as error:
            problem = error
    if not plans:
        assert problem is not None
        raise problem
    if settings.planner.objective == "memory":
        return min(plans, key=lambda plan: max(stage.memory_bytes for stage in plan.stages))
    return min(plans, key=lambda plan: plan.time_per_minibatch_s)


def _account(settings: Settings, profile: Profile, best: PipelinePlan, cuts: list[int], counts: list[int]) -> str:
    """One-line summary of the planning."""
    origin = f"profile={Path(settings.profile)}" if settings.profile else f"times {profile.occasion}"
    number, replicated = len(best.stages), best.num_devices > len(best.stages)
    chosen = f", of {counts[0]} to {counts[-1]} the best" if len(counts) > 1 else ""
    copies = f" with {best.replicas} replicas on {best.num_devices} devices" if replicated else ""
    placed = "" if best.placement is None else f" in {best.num_devices} processes"
    stages = f"{number} stage{'s' if number > 1 else ''}{copies}{placed}{chosen}"
    where = f", cut before layer{'s' if len(cuts) > 1 else ''} {', '.join(map(str, cuts))}" if cuts else ""
    full, alone = (1000 * each for each in (best.time_per_minibatch_s, best.single_device_time_s))
    return (
        f"partition=auto: {stages}{where}, by {origin}: {full:.2f} ms per minibatch in a full pipeline, {alone:.2f} ms "
        "on one device"
    )
