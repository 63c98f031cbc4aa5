"""The steps of the GPU check; each yields lines of the report."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipetrain.commands.gpu_check.runs import (
    EXACT,
    FAILED,
    Machine,
    Varied,
    attempt,
    compare_with_simulation,
    differences,
    sweep,
    unfinished,
    verdict,
)

NO_GPU = "torch finds no CUDA device"

_METHODS = (
    "gpipe", "pipedream_flush", "pipedream", "pipedream_2bw", "naive_async", "pipeoptim", "spectrain", "lwp", "stale",
    "pipemare", "timeprest", "v_timeprest", "i_timeprest",
)  # fmt: skip
_FAMILIES = ("gpipe", "pipedream_flush", "pipedream", "pipeoptim", "pipedream_2bw", "i_timeprest", "stale", "pipemare")
"""Methods with every family of schedules."""
_FEW = ("gpipe", "pipedream", "pipeoptim", "pipedream_2bw", "i_timeprest")
_OPTIMIZERS = ("sgd", "sgdm", "adam", "adamw", "nadam", "rmsprop", "adagrad", "lars")
_PROSE = "It is a truth universally acknowledged, that a single man in possession of a good fortune.\n"
_PAIRS = "ein haus\tthe house\nzwei alte haeuser am see\ttwo old houses at the lake\ndrei\tthree\n"
_TINY = (
    "model=lenet5", "dataset=synthetic_images", "dataset.limit=160", "train.batch_size=32", "train.epochs=2",
)  # fmt: skip
"""Ten steps of a small model, with an evaluation in between."""
_SIMULATED = (*_TINY, "executor=simulated", "partition.stages=2", "train.microbatches=2")
_TEXT = ("train.epochs=1", "train.max_steps=6", "train.batch_size=8", "eval.decode=false")
_FAULTY = (
    "model=custom", "model._target_=pipetrain.commands.gpu_check.probes.faulty_model", "partition=explicit",
    "partition.boundaries=[4]", "dataset=synthetic_images", "dataset.channels=1", "dataset.size=8",
    "dataset.limit=320", "train.batch_size=16", "train.epochs=1",
)  # fmt: skip
_BUSY = (
    "model=vgg16_cifar", "dataset=synthetic_images", "dataset.limit=1024", "train.batch_size=64", "train.epochs=1",
    "eval.every_epochs=0", "train.microbatches=4",
)  # fmt: skip
_LENET_LAYERS = 7


@dataclass(frozen=True)
class Step:
    """A step of the check, after `environment`.

    Attributes:
        checks: yields the lines of the step.
        gpus: smallest number of GPUs.
        emulated: True if emulated GPUs will do.
    """

    title: str
    checks: Callable[[Machine], Iterator[str]]
    gpus: int = 1
    emulated: bool = False

    def obstacle(self, machine: Machine) -> str:
        """Reason for which the machine cannot carry out the step, or empty."""
        if machine.emulated and not self.emulated:
            return "the emulation has no kernels of CUDA's, and no speed"
        if machine.gpus == 0:
            return NO_GPU
        return f"takes {self.gpus} GPUs, and there is {machine.gpus}" if machine.gpus < self.gpus else ""


def environment(machine: Machine) -> Iterator[str]:
    """Lines about the machine, whose devices it counts."""
    found = machine.call("environment", [machine.kind], seconds=180)[0]
    if not machine.emulated:
        machine.gpus = found["gpus"]
    yield from found["lines"]


def _one_gpu(machine: Machine) -> Iterator[str]:
    """Simulated runs, in one process, on one device."""
    for part in (_methods, _precisions, _optimizers, _recomputation, _lstm, _resume):
        yield from attempt(part.__name__[1:], part(machine))


def _methods(machine: Machine) -> Iterator[str]:
    settings = [*_SIMULATED, *EXACT]
    found = sweep(machine, settings, {"method": _METHODS, "device": ("cpu", machine.device)}, seconds=360)
    again = sweep(machine, settings, {"method": _METHODS}, seconds=270)
    failures = {}
    for method in _METHODS:
        on_cpu, on_gpu = found[method, "cpu"], found[method, machine.device]
        unlike_cpu = differences(f"{method}, GPU and CPU", on_gpu, on_cpu, bits=False)
        failures[method] = unlike_cpu or differences(f"{method}, twice", on_gpu, again[(method,)], bits=True)
    yield from verdict("the CPU's loss within 1e-3, and equal bits twice", failures)


def _precisions(machine: Machine) -> Iterator[str]:
    varied = {"train.precision": ("fp32", "bf16", "fp16"), "train.channels_last": ("false", "true")}
    found = sweep(machine, [*_SIMULATED, "method=pipedream"], varied, seconds=180)
    runs = {f"{precision}, channels_last={channels_last}": run for (precision, channels_last), run in found.items()}
    fp32 = found["fp32", "false"]
    failures = {name: differences(name, run, fp32, bits=False, rel=0.05) for name, run in runs.items()}
    yield from verdict("losses near that of fp32", failures)


def _optimizers(machine: Machine) -> Iterator[str]:
    found = sweep(machine, [*_SIMULATED, "method=pipedream"], {"optimizer": _OPTIMIZERS}, seconds=270)
    failures = unfinished({f"optimizer {name}": run for (name,), run in found.items()})
    yield from failures
    if not failures:
        finite = all(math.isfinite(run["final"]["loss"]) for run in found.values())
        yield f"{'ok' if finite else FAILED}: optimizers end in finite losses: {', '.join(_OPTIMIZERS)}"


def _recomputation(machine: Machine) -> Iterator[str]:
    settings = [*_SIMULATED, *EXACT, "method=pipedream"]
    found = sweep(machine, settings, {"train.recompute": ("false", "true")}, seconds=180)
    failures = differences("recomputation", found[("true",)], found[("false",)], bits=True)
    yield from failures or ["ok: recomputation has equal bits"]


def _lstm(machine: Machine) -> Iterator[str]:
    """An LSTM whose backward reads newer weights than its forward, for which cuDNN's saved weights must be replaced."""
    lstm = (
        "model=awd_lm", "model.embedding=16", "model.hidden=16", "model.layers=2", "model.dropout=0",
        "model.input_dropout=0", "model.hidden_dropout=0", "executor=simulated", "method=naive_async",
        "partition.stages=2",
    )  # fmt: skip
    found = sweep(machine, [*_text(machine), *lstm, *EXACT], {"device": ("cpu", machine.device)}, seconds=180)
    failures = differences("LSTM", found[(machine.device,)], found[("cpu",)], bits=False)
    yield from failures or ["ok: an LSTM goes back through newer weights as on the CPU"]


def _resume(machine: Machine) -> Iterator[str]:
    """A run of two epochs of five steps, and one that was resumed after the first epoch."""
    settings = [*_SIMULATED, *EXACT, "method=pipedream"]
    begun = sweep(machine, settings, {"train.epochs": ("1", "2")}, seconds=180)
    failures = unfinished({f"epochs {count}": run for (count,), run in begun.items()})
    if not failures:
        more = sweep(machine, [*settings, f"resume={begun['1',]['folder']}"], {"train.epochs": ("2",)}, seconds=120)
        failures = differences("resumed", more["2",], begun["2",], bits=True)
    yield from failures or ["ok: a resumed run has the bits of one that was not interrupted"]


def _text(machine: Machine) -> Sequence[str]:
    path = machine.folder / "prose.txt"
    path.write_text(_PROSE * 20)
    return (f"dataset.path={path}", "dataset=text_file", "dataset.positions=16", "dataset.tokens=characters", *_TEXT)


def _shared(machine: Machine) -> Iterator[str]:
    """Two stages on one device, whose messages go through host memory."""
    settings = [*_tiny(machine), "partition.stages=2", "train.microbatches=2"]
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    environment = {"PIPETRAIN_EMULATED_SHARED": "1"} if machine.emulated else visible
    return compare_with_simulation(machine, settings, {"method": ("gpipe", "pipedream")}, seconds=180, **environment)


def _links(machine: Machine) -> Iterator[str]:
    store = machine.new_folder("store")
    calls = [(rank, machine.gpus, machine.kind, str(store)) for rank in range(machine.gpus)]
    for pairs in machine.call("links", *calls, seconds=180 + 3 * machine.gpus**2):
        for pair in pairs:
            speeds = f"{pair['one_way'] / 1e9:.2f} GB/s one way, {pair['at_once'] / 1e9:.2f} GB/s both ways at once"
            first, second = pair["pair"]
            yield f"ok: {first} - {second}: {pair['transport']}, {1e6 * pair['latency_s']:.0f} us for 1 B, {speeds}"


def _schedules(machine: Machine) -> Iterator[str]:
    gpus, tiny = machine.gpus, _tiny(machine)
    if machine.emulated:
        methods_by_depth: Mapping[int, Sequence[str]] = {2: ("gpipe", "pipedream"), 3: ("pipeoptim",)}
        replicas = [(2, 1)]
    else:
        depths = [count for count in sorted({2, 4, min(_LENET_LAYERS, gpus)}) if count <= gpus]
        methods_by_depth = {count: _FAMILIES if count == 2 else _FEW for count in depths}
        replicas = [each for each in dict.fromkeys([(2, 1), (1, 2), (2, 2), (gpus - 1, 1)]) if 2 < sum(each) <= gpus]
    for count, methods in methods_by_depth.items():
        settings = [*tiny, f"partition.stages={count}", "train.microbatches=4"]
        yield from _compare(machine, f"{count} stages", settings, {"method": methods}, 300)
    for counts in replicas:
        settings = [*tiny, "partition.stages=2", f"partition.replicas=[{counts[0]},{counts[1]}]"]
        yield from _compare(machine, f"replicas {list(counts)}", settings, {"method": ("pipedream",)}, 180)
    tied = ("model=gpt", "model.layers=2", "model.width=16", "model.heads=2", "model.tied=true", "partition.stages=2")
    yield from _compare(machine, "ties", [*_text(machine), *tied], {"method": ("gpipe",)}, 180)
    padded = [*_padded(machine), "partition.stages=2", "train.microbatches=2"]
    yield from _compare(machine, "padded text", padded, {"method": ("gpipe", "pipedream")}, 180)


def _tiny(machine: Machine) -> Sequence[str]:
    """Settings with fewer steps where threads emulate devices."""
    return [*_TINY, "dataset.limit=64"] if machine.emulated else _TINY


def _padded(machine: Machine) -> Sequence[str]:
    """A translation whose minibatches are as long as their longest sentences."""
    pairs = [line.split("\t") for line in _PAIRS.splitlines() * 20]
    for language, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        for name in ("train", "val"):
            (machine.folder / f"{name}.{language}").write_text("\n".join(lines) + "\n")
    return ("model=transformer", "model.layers=1", "model.width=16", "model.feedforward=16", "model.heads=2",
            "model.dropout=0", "dataset=parallel_text", f"dataset.root={machine.folder}", "dataset.tokens=words",
            "dataset.vocabulary_size=null", *_TEXT)  # fmt: skip


def _compare(
    machine: Machine, name: str, settings: Sequence[str], varied: Varied, seconds: float, **environment: str
) -> Iterator[str]:
    yield f"{name}:"
    yield from attempt(name, compare_with_simulation(machine, settings, varied, seconds=seconds, **environment))


def _stress(machine: Machine) -> Iterator[str]:
    """Runs whose host waits for the whole device while receives are posted, or with few queues or NCCL blocks."""
    cases: dict[str, dict[str, str]] = {"memory freed in every forward": {}}
    for name, values in {"CUDA_DEVICE_MAX_CONNECTIONS": "1 32", "NCCL_MAX_CTAS": "1 8"}.items():
        cases |= {f"{name}={value}": {name: value} for value in values.split()}
    if machine.emulated:
        mutant = "support.mutants:full_memory_of_stage_1"
        cases = {"one stage waits for its whole device at every 7th allocation": {"PIPETRAIN_MUTANT": mutant}}
    for name, environment in cases.items():
        settings = [*_FAULTY, "+model.fault=free"]
        yield from _compare(machine, name, settings, {"method": ("pipedream",)}, 150, **environment)


def _failures(machine: Machine) -> Iterator[str]:
    """Faults of the second stage: seconds until the run has ended, and its reason."""
    for fault, named in {"kill": "SIGKILL", "raise": "the check asked for this error", "memory": "memory"}.items():
        yield from attempt(fault, _fault(machine, fault, named))


def _fault(machine: Machine, fault: str, named: str) -> Iterator[str]:
    moment = machine.new_folder(fault) / "moment"
    settings = [*_FAULTY, f"+model.fault={fault}", f"+model.moment={moment}"]
    run = sweep(machine, settings, {"method": ("pipedream",)}, seconds=180)[("pipedream",)]
    seconds, reason = time.time() - float(moment.read_text()), str(run.get("reason"))
    passed = run["status"] == "failed" and "stage 1" in reason and named in reason and seconds < 30
    yield f"{'ok' if passed else FAILED}: {fault}: the run ended after {seconds:.1f} s: {reason}"


def _speed(machine: Machine) -> Iterator[str]:
    if machine.gpus > 1:
        methods = {"method": ("pipedream", "gpipe", "pipedream_flush")}
        yield from attempt("throughput", _throughput(machine, [*_BUSY, "partition.stages=2"], methods))
        settings, library = [*_BUSY, "partition.stages=4", "method=gpipe"], {"schedule": ("torch_interleaved_1f1b",)}
        yield from attempt("torch's 1F1B", _throughput(machine, settings, library))
    yield from attempt("waits of the host", _waits(machine))


def _throughput(machine: Machine, settings: Sequence[str], varied: Varied) -> Iterator[str]:
    found = sweep(machine, settings, varied, seconds=270)
    yield from unfinished({name: run for (name,), run in found.items()})
    for (name,), run in found.items():
        idle = ", ".join(f"{100 * (stage.get('idle_share') or math.nan):.0f} %" for stage in run.get("per_stage", []))
        yield f"{name}: {run.get('samples_per_second') or math.nan:.0f} samples/s, idle {idle}, {run.get('transport')}"


def _waits(machine: Machine) -> Iterator[str]:
    """Waits of the host and kernel launches in a step of a simulated run of two stages."""
    words = [
        f"device={machine.device}", "method=pipeoptim", "model=lenet5", "dataset=synthetic_images", "dataset.limit=640",
        "train.epochs=1", "train.batch_size=32", "eval.every_epochs=0", "checkpoint.every_epochs=0",
        "executor=simulated", "partition.stages=2",
    ]  # fmt: skip
    folder = str(machine.new_folder("simulated"))
    for line, count in machine.call("waits", (folder, words), seconds=180)[0].items():
        yield f"the host waits {count:g} times a step at {line}"
    yield f"{machine.call('launches', (folder, words), seconds=180)[0]:g} kernels a step"


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
