"""The steps of the check, each of which adds what it finds to a section of the report."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.commands.gpu_check.runs import (
    EXACT,
    TEXT,
    TINY,
    Machine,
    Section,
    Varied,
    agree,
    as_simulated,
    completed,
    run,
    sweep,
)

_DISTINCT = (
    "gpipe", "pipedream_flush", "pipedream", "pipedream_2bw", "naive_async", "pipeoptim", "spectrain", "lwp", "stale",
    "pipemare", "timeprest", "v_timeprest", "i_timeprest",
)  # fmt: skip
_FAMILIES = ("gpipe", "pipedream_flush", "pipedream", "pipeoptim", "pipedream_2bw", "i_timeprest", "stale", "pipemare")
"""Methods whose schedules are all families."""
_FEW = ("gpipe", "pipedream", "pipeoptim", "pipedream_2bw", "i_timeprest")
_OPTIMIZERS = ("sgd", "sgdm", "adam", "adamw", "nadam", "rmsprop", "adagrad", "lars")
_PROSE = "It is a truth universally acknowledged, that a single man in possession of a good fortune.\n"
_PAIRS = "ein haus\tthe house\nzwei alte haeuser am see\ttwo old houses at the lake\ndrei\tthree\n"
_DISTURBED = (
    "model=custom", "model._target_=pipetrain.commands.gpu_check.inside.disturbed", "partition=explicit",
    "partition.boundaries=[4]", "dataset=synthetic_images", "dataset.channels=1", "dataset.size=8",
    "dataset.limit=320", "train.batch_size=16", "train.epochs=1",
)  # fmt: skip
_BUSY = (
    "model=vgg16_cifar", "dataset=synthetic_images", "dataset.limit=1024", "train.batch_size=64", "train.epochs=1",
    "eval.every_epochs=0", "partition.stages=2", "train.microbatches=4",
)  # fmt: skip
_SIMULATED = (*TINY, "executor=simulated", "partition.stages=2", "train.microbatches=2")
_LAYERS = 7  # of LeNet-5
_PIPEDREAM: Varied = {"method": ("pipedream",)}
_LAST_STAGE = "stage 1"


@dataclass(frozen=True)
class Step:
    """A step of the check.

    Attributes:
        title: in the report.
        carry_out: adds what it finds to a section.
        gpus: how many it takes at least.
        emulated: True if the emulation carries it.
    """

    title: str
    carry_out: Callable[[Machine, Section], None]
    gpus: int = 1
    emulated: bool = False

    def not_tested(self, machine: Machine) -> str | None:
        """Why it cannot be carried out there, or None."""
        if machine.emulated and not self.emulated:
            return "the emulation has no kernels of CUDA's, and no speed"
        if machine.gpus == 0:
            return "torch finds no CUDA device"
        if machine.gpus < self.gpus:
            return f"takes {self.gpus} GPUs, and there is {machine.gpus}"
        return None


def environment(machine: Machine) -> tuple[int, Section]:
    """Number of devices, and the section about them."""
    section, gpus = Section(), [0]

    def look() -> None:
        found = machine.inside("environment", machine.kind, seconds=60)
        gpus[0] = found["gpus"]
        section.note("\n".join(found["lines"]))

    section.attempt("the environment", look)
    return gpus[0], section


def _one_gpu(machine: Machine, section: Section) -> None:
    """Simulated runs, in one process, on one device."""
    parts = {
        "methods": _methods, "precisions": _precisions, "optimizers": _optimizers, "recomputation": _recomputation,
        "LSTM": _lstm, "resume": _resume,
    }  # fmt: skip
    for name, part in parts.items():
        section.attempt(name, functools.partial(part, machine, section))


def _methods(machine: Machine, section: Section) -> None:
    found = sweep(machine, [*_SIMULATED, *EXACT], {"method": _DISTINCT, "device": ("cpu", machine.device)}, seconds=120)
    again = sweep(machine, [*_SIMULATED, *EXACT], {"method": _DISTINCT}, seconds=90)
    alike = []
    for method in _DISTINCT:
        on_cpu, on_gpu = found[method, "cpu"], found[method, machine.device]
        near = agree(section, f"{method}, GPU and CPU", on_gpu, on_cpu, bits=False)
        if near and agree(section, f"{method}, twice", on_gpu, again[(method,)], bits=True):
            alike.append(method)
    section.note(f"ok: the CPU's loss within 1e-3, and equal bits twice: {', '.join(alike) or 'none'}")


def _precisions(machine: Machine, section: Section) -> None:
    varied = {"train.precision": ("fp32", "bf16", "fp16"), "train.channels_last": ("false", "true")}
    found = sweep(machine, [*_SIMULATED, "method=pipedream"], varied, seconds=60)
    names = {values: f"{values[0]}, channels_last={values[1]}" for values in found}
    near = [
        names[values]
        for values, each in found.items()
        if agree(section, names[values], each, found["fp32", "false"], bits=False, rel=0.05)
    ]
    section.note(f"ok: losses near that of fp32: {'; '.join(near) or 'none'}")


def _optimizers(machine: Machine, section: Section) -> None:
    found = sweep(machine, [*_SIMULATED, "method=pipedream"], {"optimizer": _OPTIMIZERS}, seconds=90)
    if completed(section, found, "optimizer"):
        finite = all(math.isfinite(each["final"]["loss"]) for each in found.values())
        section.expect(finite, f"optimizers end in finite losses: {', '.join(_OPTIMIZERS)}")


def _recomputation(machine: Machine, section: Section) -> None:
    settings = [*_SIMULATED, *EXACT, "method=pipedream"]
    found = sweep(machine, settings, {"train.recompute": ("false", "true")}, seconds=60)
    if agree(section, "recomputation", found[("true",)], found[("false",)], bits=True):
        section.note("ok: recomputation has equal bits")


def _lstm(machine: Machine, section: Section) -> None:
    """An LSTM whose backward reads newer weights than its forward, for which cuDNN's saved weights must be replaced."""
    lstm = (
        "model=awd_lm", "model.embedding=16", "model.hidden=16", "model.layers=2", "model.dropout=0",
        "model.input_dropout=0", "model.hidden_dropout=0", "executor=simulated", "method=naive_async",
        "partition.stages=2",
    )  # fmt: skip
    found = sweep(machine, [*_text(machine), *lstm, *TEXT, *EXACT], {"device": ("cpu", machine.device)}, seconds=60)
    if agree(section, "LSTM", found[(machine.device,)], found[("cpu",)], bits=False):
        section.note("ok: an LSTM goes back through newer weights as on the CPU")


def _resume(machine: Machine, section: Section) -> None:
    """Five steps, an end of the epoch, and five more: a run of two epochs, and one that was resumed after the first."""
    settings = [*_SIMULATED, *EXACT, "method=pipedream"]
    begun = sweep(machine, settings, {"train.epochs": ("1", "2")}, seconds=60)
    if completed(section, begun, "epochs"):
        more = sweep(machine, [*settings, f"resume={begun['1',]['folder']}"], {"train.epochs": ("2",)}, seconds=40)
        if agree(section, "resumed", more["2",], begun["2",], bits=True):
            section.note("ok: a resumed run has the bits of one that was not interrupted")


def _text(machine: Machine) -> Sequence[str]:
    path = machine.folder / "prose.txt"
    path.write_text(_PROSE * 20)
    return (f"dataset.path={path}", "dataset=text_file", "dataset.positions=16", "dataset.tokens=characters")


def _shared(machine: Machine, section: Section) -> None:
    """Two stages on one device, whose messages go through host memory."""
    settings = [*_tiny(machine), "partition.stages=2", "train.microbatches=2"]
    one = (
        {"PIPETRAIN_EMULATED_SHARED": "1"}
        if machine.emulated
        else {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    )
    section.attempt(
        "two stages on one GPU",
        lambda: as_simulated(machine, section, settings, {"method": ("gpipe", "pipedream")}, seconds=60, **one),
    )


def _links(machine: Machine, section: Section) -> None:
    def measure() -> None:
        store = machine.new_folder("store")
        calls = [("links", (rank, machine.gpus, machine.kind, str(store))) for rank in range(machine.gpus)]
        for end in machine.together(calls, seconds=60 + machine.gpus**2):
            for pair in end:
                speeds = f"{pair['one_way'] / 1e9:.2f} GB/s one way, {pair['at_once'] / 1e9:.2f} GB/s both ways at once"
                first, second = pair["pair"]
                latency = f"{1e6 * pair['latency_s']:.0f} us for 1 B"
                section.note(f"ok: {first} - {second}: {pair['transport']}, {latency}, {speeds}")

    section.attempt("links", measure)


def _schedules(machine: Machine, section: Section) -> None:
    for count in (2, 3) if machine.emulated else _depths(machine.gpus):
        methods: Sequence[str] = _FAMILIES if count == 2 and not machine.emulated else _FEW
        if machine.emulated and count == 3:
            methods = ("gpipe", "pipeoptim")
        stages = (f"partition.stages={count}", "train.microbatches=4")
        _compare(machine, section, f"{count} stages", [*_tiny(machine), *stages], {"method": methods}, 100)
    for replicas in _replicas(machine):
        words = ("partition.stages=2", f"partition.replicas=[{replicas[0]},{replicas[1]}]")
        _compare(machine, section, f"replicas {list(replicas)}", [*_tiny(machine), *words], _PIPEDREAM, 60)
    tied = ("model=gpt", "model.layers=2", "model.width=16", "model.heads=2", "model.tied=true", "partition.stages=2")
    _compare(machine, section, "ties", (*_text(machine), *TEXT, *tied), {"method": ("gpipe",)}, 60)
    padded = (*_padded(machine), *TEXT, "partition.stages=2", "train.microbatches=2")
    _compare(machine, section, "padded text", padded, {"method": ("gpipe", "pipedream")}, 60)


def _depths(gpus: int) -> Sequence[int]:
    """Two, four, and as many stages as there are GPUs, or as the model has layers."""
    return [count for count in sorted({2, 4, min(_LAYERS, gpus)}) if count <= gpus]


def _replicas(machine: Machine) -> Sequence[tuple[int, int]]:
    if machine.emulated:
        return [(2, 1)]
    counts = dict.fromkeys([(2, 1), (1, 2), (2, 2), (machine.gpus - 1, 1)])
    return [each for each in counts if max(each) > 1 and sum(each) <= machine.gpus]


def _tiny(machine: Machine) -> Sequence[str]:
    """Fewer steps where threads stand for devices."""
    return [*TINY, "dataset.limit=64"] if machine.emulated else TINY


def _padded(machine: Machine) -> Sequence[str]:
    """A translation whose minibatches are as long as their longest sentences."""
    pairs = [line.split("\t") for line in _PAIRS.splitlines() * 20]
    for language, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        for name in ("train", "val"):
            (machine.folder / f"{name}.{language}").write_text("\n".join(lines) + "\n")
    return ("model=transformer", "model.layers=1", "model.width=16", "model.feedforward=16", "model.heads=2",
            "model.dropout=0", "dataset=parallel_text", f"dataset.root={machine.folder}", "dataset.tokens=words",
            "dataset.vocabulary_size=null")  # fmt: skip


def _compare(
    machine: Machine, section: Section, name: str, settings: Sequence[str], varied: Varied,
    seconds: float, **environment: str,
) -> None:  # fmt: skip
    section.note(f"{name}:")
    section.attempt(name, lambda: as_simulated(machine, section, settings, varied, seconds=seconds, **environment))


def _stress(machine: Machine, section: Section) -> None:
    """Runs whose host waits for the whole device while receives are posted, or with few queues or NCCL blocks."""
    cases: dict[str, dict[str, str]] = {"memory freed in every forward": {}}
    for name, values in {"CUDA_DEVICE_MAX_CONNECTIONS": "1 32", "NCCL_MAX_CTAS": "1 8"}.items():
        cases |= {f"{name}={value}": {name: value} for value in values.split()}
    if machine.emulated:
        mutant = "support.mutants:full_memory_of_stage_1"
        cases = {"one stage waits for its whole device at every 7th allocation": {"PIPETRAIN_MUTANT": mutant}}
    for name, environment in cases.items():
        _compare(machine, section, name, [*_DISTURBED, "+model.how=free"], _PIPEDREAM, 50, **environment)


def _failures(machine: Machine, section: Section) -> None:
    """Faults of the second stage: how long until the run has ended, and what it says."""
    for how, told in {"kill": "SIGKILL", "raise": "the check asked for this error", "memory": "memory"}.items():
        section.attempt(how, functools.partial(_fault, machine, section, how, told))


def _fault(machine: Machine, section: Section, how: str, told: str) -> None:
    folder = machine.new_folder(how)
    moment = folder / "moment"
    words = (*_DISTURBED, f"+model.how={how}", f"+model.moment={moment}", "method=pipedream")
    summary, printed = run(machine, folder, *words, seconds=60)
    seconds = time.time() - float(moment.read_text()) if moment.exists() else math.nan
    reason = str(summary.get("reason", printed))
    section.expect(
        summary.get("status") == "failed" and _LAST_STAGE in reason and told in reason and seconds < 30,
        f"{how}: the run ended after {seconds:.1f} s: {reason}",
    )


def _speed(machine: Machine, section: Section) -> None:
    def throughput() -> None:
        found = sweep(machine, _BUSY, {"method": ("pipedream", "gpipe", "pipedream_flush")}, seconds=90)
        completed(section, found, "speed")
        section.note("\n".join(_speed_line(method, each) for (method,), each in found.items()))

    def library() -> None:
        words = [word for word in _BUSY if not word.startswith("partition.stages")]
        settings = [*words, "schedule=torch_interleaved_1f1b", "partition.stages=4", "method=gpipe"]
        found = sweep(machine, settings, {"seed": ("0",)}, seconds=60)
        if completed(section, found, "torch_interleaved_1f1b"):
            section.note("\n".join(_speed_line("torch_interleaved_1f1b", each) for each in found.values()))

    if machine.gpus > 1:
        section.attempt("throughput", throughput)
        section.attempt("torch's 1F1B", library)
    section.attempt("waits of the host", lambda: _waits(machine, section))


def _speed_line(name: str, each: object) -> str:
    assert isinstance(each, dict)
    idle = ", ".join(f"{100 * (stage.get('idle_share') or math.nan):.0f} %" for stage in each.get("per_stage", []))
    return f"{name}: {each.get('samples_per_second') or math.nan:.0f} samples/s, idle {idle}, {each.get('transport')}"


def _waits(machine: Machine, section: Section) -> None:
    """Waits of the host and kernel launches in a step of a simulated run of two stages."""
    words = [
        f"device={machine.device}", "method=pipeoptim", "model=lenet5", "dataset=synthetic_images", "dataset.limit=640",
        "train.epochs=1", "train.batch_size=32", "eval.every_epochs=0", "checkpoint.every_epochs=0",
        "executor=simulated", "partition.stages=2",
    ]  # fmt: skip
    folder = str(machine.new_folder("waits"))
    for line, count in machine.inside("waits", folder, words, seconds=60).items():
        section.note(f"the host waits {count:g} times a step at {line}")
    section.note(f"{machine.inside('launches', folder, words, seconds=60):g} kernels a step")


STEPS = (
    Step("one GPU: methods, precisions, optimizers, LSTM, recomputation, resume", _one_gpu),
    Step("one GPU shared by two stages", _shared, emulated=True),
    Step("links of each pair of GPUs", _links, gpus=2, emulated=True),
    Step("schedules, replicas, ties and text against the simulation", _schedules, gpus=2, emulated=True),
    Step("stress: waits for the whole device, queues, thread blocks", _stress, gpus=2, emulated=True),
    Step("failures: a stage killed, one that raises, one out of memory", _failures, emulated=True),
    Step("speed", _speed),
)
"""In the order of the report, after the environment."""
