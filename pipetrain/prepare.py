"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipetrain import checkpoint
from pipetrain.build import (
    build_chain,
    build_data,
    build_loss,
    build_rate,
    build_rules,
    build_torch_optimizer,
    call_target,
    total_steps,
)
from pipetrain.catalog import check_pair
from pipetrain.config import check
from pipetrain.errors import ConfigError
from pipetrain.executors.base import Rules
from pipetrain.models.chain import LayerChain
from pipetrain.planner.plan import Plan, make_plan
from pipetrain.probe import weight_derived_layers
from pipetrain.resume import checkpoint_to_resume
from pipetrain.worker import Job

EXECUTORS = ("distributed", "simulated")


@dataclass(frozen=True)
class Prepared:
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


def prepare(config: dict[str, Any], names: Mapping[str, str], run: Path) -> Prepared:
    """Builds everything once, to see that it can be built.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    check(config)
    if config["executor"]["name"] not in EXECUTORS:
        raise ConfigError(f"executor.name={config['executor']['name']}: one of {', '.join(EXECUTORS)}")
    device = device_of(config["device"])
    rule = call_target("partition", config["partition"])
    data = build_data(config)
    chain = build_chain(config, data.dataset)
    plan = make_plan(chain, rule, data.example)
    stages = len(plan.stages)
    rules = build_rules(config, stages)
    check_pair(rules.method, rules.schedule, dict(names))
    rules.lists(2 * stages + 1)
    _check_optimizer(config, chain, rules.method)
    notes = _notes(config, data.train.dropped, rules.schedule.synchronous)
    if _backward_reads_others(rules):
        notes += _derived(weight_derived_layers(chain, data.example), names["method"])
    build_loss(config)
    steps_per_epoch = len(data.train)
    total = total_steps(config, steps_per_epoch)
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
        bounds=[(stage.first, stage.last) for stage in plan.stages],
        plan=[{"layers": stage.last - stage.first, "parameters": stage.parameters} for stage in plan.stages],
        threads=config["threads"] or max(1, _cores() // stages),
        device=device,
        resume=str(resume) if resume else None,
    )
    return Prepared(job, plan, _devices(job), total, start, notes)


def _backward_reads_others(rules: Rules) -> bool:
    """Whether some backward finds other weights than its forward read."""
    minibatches = 2 * rules.stages + 1
    return any(rules.readings(r, minibatches).changes for r in range(rules.stages))


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
        return ["cpu"] * job.stages
    shared = 1 if job.config["executor"]["name"] == "simulated" else torch.cuda.device_count()
    return [f"cuda:{r % shared}" for r in range(job.stages)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _notes(config: Mapping[str, Any], dropped: int, synchronous: bool) -> list[str]:
    notes = []
    if dropped:
        notes.append(
            f"the last {dropped} samples of each epoch are dropped: fewer than train.microbatches="
            f"{config['train']['microbatches']}"
        )
    if config["optimizer"].get("clip_norm") is not None:
        where = "over all stages together" if synchronous else "on each stage alone, as there is no global norm in time"
        notes.append(f"gradients are clipped to optimizer.clip_norm={config['optimizer']['clip_norm']} {where}")
    return notes
