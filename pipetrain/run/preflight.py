"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipetrain.config import phases
from pipetrain.config.schema import check
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.torch_pipelining.limits import check_unlisted, common_placement, notes_of
from pipetrain.models.chain import LayerChain
from pipetrain.planner.finegrained import FineGrained
from pipetrain.planner.plan import Plan, make_plan
from pipetrain.run import checkpoint
from pipetrain.run.build import (
    build_chain,
    build_data,
    build_loss,
    build_phases,
    build_rate,
    build_torch_optimizer,
    call_target,
    first_layers,
    total_steps,
)
from pipetrain.run.job import Job
from pipetrain.run.model_check import weight_derived_layers
from pipetrain.run.resume import checkpoint_to_resume
from pipetrain.schedules import Placement

EXECUTORS = ("distributed", "simulated")


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start.

    Attributes:
        job: for the processes.
        plan: the partition.
        devices: where each stage will compute.
        total_steps: of the whole run.
        start_step: where a resumed run goes on, else 0.
        notes: what the user should know.
    """

    job: Job
    plan: Plan
    devices: list[str]
    total_steps: int
    start_step: int
    notes: list[str]


def prepare(config: dict[str, Any], names: Mapping[str, str], run: Path) -> PreparedRun:
    """Builds everything once, to see that it can be built.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    config = {**config, "phases": phases.resolved(config, names)}
    check(config)
    if config["executor"]["name"] not in EXECUTORS:
        raise ConfigError(f"executor.name={config['executor']['name']}: one of {', '.join(EXECUTORS)}")
    device = device_of(config["device"])
    rule = call_target("partition", config["partition"])
    data = build_data(config)
    chain = build_chain(config, data.dataset)
    finegrained = isinstance(rule, FineGrained)
    plan = rule.plan(chain, data.example) if isinstance(rule, FineGrained) else make_plan(chain, rule, data.example)
    stages = len(plan.stages)
    bounds = [(stage.first, stage.last) for stage in plan.stages]
    parts = build_phases(config, names, stages, first_layers(chain, bounds, finegrained), data)
    _check_executor(config, parts, finegrained)
    placement = common_placement([phase.rules.schedule for phase in parts], stages)
    notes = _notes(config, data.train.dropped)
    for number, phase in enumerate(parts):
        with phases.naming(config, number):
            if not phase.rules.schedule.listed:
                check_unlisted(config, phase.rules.schedule, data.train.sizes)
                _check_devices(device, placement)
                notes += [note for note in notes_of(phase.rules.schedule, placement) if note not in notes]
            elif not finegrained:  # its stages exchange nothing, and their lists are long
                phase.rules.lists(2 * phase.rules.contexts[0].delay + 1)
            notes += [note for note in _phase_notes(config, chain, phase) if note not in notes]
    changing = [phase.rules.method.name for phase in parts if _backward_reads_others(phase.rules)]
    if changing:
        notes += _derived(weight_derived_layers(chain, data.example), changing[0])
    build_loss(config)
    steps_per_epoch = len(data.train)
    total = total_steps(config, names, steps_per_epoch)
    build_rate(config, steps_per_epoch, total)(0)
    resume = checkpoint_to_resume(config, names, run)
    start = checkpoint.load_progress(resume)["step"] if resume else 0
    if resume and start >= total:
        raise ConfigError(
            f"resume={config['resume']}: {resume} is at step {start}, and this run ends at step {total}; "
            "raise train.epochs or train.max_steps"
        )
    job = Job(
        config=config,
        names=dict(names),
        run=str(run),
        bounds=bounds,
        plan=[{"layers": stage.last - stage.first, "parameters": stage.parameters} for stage in plan.stages],
        threads=config["threads"] or max(1, _cores() // (1 if finegrained else placement.num_processes)),
        device=device,
        resume=str(resume) if resume else None,
        finegrained=finegrained,
        placed=placement,
    )
    return PreparedRun(job, plan, _devices(job), total, start, notes)


def _check_executor(config: Mapping[str, Any], parts: list[Phase], finegrained: bool) -> None:
    train = config["train"]
    if finegrained:
        if config["executor"]["name"] != "simulated":
            raise ConfigError("partition=finegrained cuts layers apart, which only executor=simulated can run")
        if config["trace"]:
            raise ConfigError("trace=true: with partition=finegrained no stage runs by itself; leave trace out")
        if train["recompute"] and train["recompute_boundaries"] is None:
            raise ConfigError(
                "train.recompute=true: with partition=finegrained stages begin inside layers; name the layers that "
                "segments begin with, such as train.recompute_boundaries=[0]"
            )
    if config["executor"]["name"] == "simulated":
        return
    for number, phase in enumerate(parts):
        if phase.rules.method.simulated_only:
            with phases.naming(config, number):
                raise ConfigError(
                    f"method={phase.rules.method.name} reads weights that no pipeline of processes has; use "
                    "executor=simulated"
                )
    if train["recompute_boundaries"] is not None:
        raise ConfigError(
            f"train.recompute_boundaries={train['recompute_boundaries']}: recomputation across stages is "
            "simulated only; use executor=simulated, or train.recompute=true, where each stage recomputes by itself"
        )


def _phase_notes(config: Mapping[str, Any], chain: LayerChain, phase: Phase) -> list[str]:
    """What the user should know of a phase that can run.

    Raises:
        ConfigError: its method cannot work with the optimizer.
    """
    rules = phase.rules
    _check_optimizer(config, chain, rules.method)
    return [*rules.method.notes(rules.contexts), *_clip_note(config, rules)]


def _backward_reads_others(rules: PipelineRules) -> bool:
    """Whether some backward finds other weights than its forward read."""
    if rules.schedule.synchronous:
        return False
    minibatches = rules.contexts[0].delay + 2
    return any(rules.readings(r, minibatches).change for r in sorted({0, rules.num_stages // 2, rules.num_stages - 1}))


def _derived(layers: list[str], method: str) -> list[str]:
    if not layers:
        return []
    return [
        f"warning: {', '.join(layers)} computes a tensor from its weights in the forward; the backward reads it as it "
        f"was then, even where method={method} names other weights"
    ]


def _check_optimizer(config: Mapping[str, Any], chain: LayerChain, method: Any) -> None:
    parameters: list[nn.Parameter] = [p for p in chain.module.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError("model: no parameter requires a gradient; there is nothing to train")
    method.check_optimizer(build_torch_optimizer(config, parameters))


def device_of(device: str) -> str:
    """cpu or cuda for the setting `device`.

    Raises:
        ConfigError: there is no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda: torch finds no CUDA device here; device=cpu works, `pipetrain doctor` says more"
        )
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _devices(job: Job) -> list[str]:
    if job.device == "cpu":
        return ["cpu"] * job.num_stages
    shared = 1 if job.config["executor"]["name"] == "simulated" else torch.cuda.device_count()
    return [f"cuda:{job.placement.process_of(r) % shared}" for r in range(job.num_stages)]


def _check_devices(device: str, placement: Placement) -> None:
    """A library that moves the device's own memory needs a device for each process."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", placement.num_processes))
    if device == "cuda" and torch.cuda.device_count() < here:
        raise ConfigError(
            f"device=cuda: torch.distributed.pipelining needs a CUDA device for each of {here} processes, and there "
            f"are {torch.cuda.device_count()}; device=cpu works"
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _notes(config: Mapping[str, Any], dropped: int) -> list[str]:
    if not dropped:
        return []
    limit = config["train"]["microbatches"]
    return [f"the last {dropped} samples of each epoch are dropped: fewer than train.microbatches={limit}"]


def _clip_note(config: Mapping[str, Any], rules: PipelineRules) -> list[str]:
    limit = config["optimizer"].get("clip_norm")
    if limit is None:
        return []
    alone = "on each stage alone, as there is no global norm in time"
    where = "over all stages together" if rules.schedule.synchronous else alone
    return [f"gradients are clipped to optimizer.clip_norm={limit} {where} (method={rules.method.name})"]
