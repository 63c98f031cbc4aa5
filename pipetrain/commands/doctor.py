"""`pipetrain doctor`: available hardware and libraries, and what each missing one disables."""

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of
from pathlib import Path

from pipetrain import __version__
from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.engine.processes import usable_cores
from pipetrain.runner.terminal.arguments import Subparsers
from pipetrain.runner.terminal.output_folder import check_writable

_MARKS = {"ok": "ok", "limited": "!", "absent": "-", "missing": "!!"}
_LITTLE = 1e9
_OPTIONAL = {
    "timm": "its models: model._target_=timm.create_model",
    "transformers": "its models: docs/your-model.md",
    "babel": "dates and units of dataset=synthetic_en_de: docs/language-models.md",
    "num2words": "numbers of dataset=synthetic_en_de: docs/language-models.md",
    "nltk": "METEOR of captions: docs/language-models.md",
    "h5py": "features of videos in HDF5 files: docs/language-models.md",
    "torchmetrics": "metrics such as F1 and AUC: docs/metrics.md",
    "mlflow-skinny": "runs in MLflow, log.to=[mlflow]: docs/trackers.md",
    "wandb": "runs in Weights & Biases, log.to=[wandb]: docs/trackers.md",
    "pandas": "reading metrics.jsonl as a table: docs/records.md",
    "hydra-joblib-launcher": "runs of a sweep in parallel: hydra/launcher=joblib",
    "hydra-submitit-launcher": "runs of a sweep as Slurm jobs: hydra/launcher=submitit_slurm",
    "hydra-optuna-sweeper": "searches over settings: hydra/sweeper=optuna",
}
"""Package -> its use."""
_DESCRIPTION = """\
Checks this machine: versions, devices, how stages exchange messages, memory, whether runs can write to this folder, and
optional packages. "ok": works; "!": works in part; "-": absent, but not required; "!!": missing. Exits with 1 if
something is missing without which runs fail even on the CPU."""
_VARIABLES = ("NCCL_", "TORCH_NCCL_", "CUDA_", "CUBLAS_", "PYTORCH_", "NVIDIA_VISIBLE")


@dataclass(frozen=True)
class Finding:
    """A finding about the machine.

    Attributes:
        state: `ok`; `limited`, which works in part; `absent`, which most runs do without; or `missing`.
    """

    name: str
    state: str
    text: str


def add_parser(subparsers: Subparsers) -> None:
    """Adds `doctor`."""
    text = "check this machine: versions, devices, memory, disk"
    parser = subparsers.add_parser("doctor", help=text, description=_DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print machine-readable findings")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints a line for each finding; fails if a run on the CPU cannot work."""
    findings = [*_libraries(), *_machine(), *_optional()]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{_MARKS[finding.state]:3} {finding.name:{width}} {finding.text}")
    return ExitCode.FAILED if any(finding.state == "missing" for finding in findings) else ExitCode.COMPLETED


def _libraries() -> Iterator[Finding]:
    """The required libraries, and the devices and backends of torch."""
    yield Finding("pipetrain", "ok", f"{__version__}, Python {platform.python_version()}")
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", "missing", f"{error}; pip install torch: without it nothing runs")
    else:
        yield Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
        yield from _devices()
        yield _torchvision(torch.__version__)
        yield _tensorboard()
    for name in _required():
        if name not in ("torch", "torchvision", "tensorboard") and _version(name) is None:
            yield Finding(name, "missing", f"pip install {name}: pipetrain needs it")


def _required() -> list[str]:
    """The packages that pipetrain requires; none of a checkout that was never installed."""
    try:
        wanted = [each for each in requires("pipetrain") or [] if "extra ==" not in each]
    except PackageNotFoundError:
        wanted = []
    return [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in wanted]


def _tensorboard() -> Finding:
    try:
        import tensorboard
    except ImportError as error:
        return Finding("tensorboard", "missing", f"{error}; runs write event files with it")
    return Finding("tensorboard", "ok", str(tensorboard.__version__))


def _devices() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    transport = ""
    if torch.cuda.is_available():
        from pipetrain.engine.executors.messages.transport import DeviceIdentity, transport_between
        from pipetrain.runner.training.components.machine import device_at

        count = torch.cuda.device_count()
        text = f"{count} device(s), which more stages than devices share"
        yield Finding("cuda", "ok", f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}; {text}")
        yield from _gpus()
        devices = [device_at("cuda", rank) for rank in range(max(2, count))]
        found = transport_between(devices[0], [DeviceIdentity.of(device) for device in devices])
        transport = f"; {len(devices)} processes here use {found.backend}: {found.reason}"
    else:
        built = torch.version.cuda
        why = f"torch is built for CUDA {built} and finds no device" if built else "torch is a CPU build"
        yield Finding("cuda", "absent", f"{why}; runs use the CPU")
    available = dist.is_available()
    if available and dist.is_gloo_available():
        yield Finding("gloo", "ok", "messages on the CPU")
    else:
        yield Finding("gloo", "missing", "executor=distributed cannot run; executor=simulated can")
    if available and dist.is_nccl_available():
        version = ".".join(map(str, torch.cuda.nccl.version()))
        yield Finding("nccl", "ok", f"{version}, messages between GPUs{transport}")
    else:
        yield Finding("nccl", "absent", "stages on GPUs exchange messages through the host")


def _gpus() -> Iterator[Finding]:
    """The GPUs, their driver, the pairs without peer access, and variables that change how GPUs are used."""
    import torch

    count = torch.cuda.device_count()
    for index in range(count):
        found = torch.cuda.get_device_properties(index)
        memory = f"{found.total_memory / 1e9:.1f} GB, {found.multi_processor_count} SMs"
        yield Finding(f"cuda:{index}", "ok", f"{found.name}, {memory}, capability {found.major}.{found.minor}")
    yield _driver()
    yield from _peer_access(count)
    if given := [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)]:
        yield Finding("environment", "ok", " ".join(given))


def _peer_access(count: int) -> Iterator[Finding]:
    import torch

    pairs = list(itertools.permutations(range(count), 2))
    if without := [f"{i}-{j}" for i, j in pairs if not torch.cuda.can_device_access_peer(i, j)]:
        yield Finding("peer access", "limited", f"not from {', '.join(without)}: messages go through host memory")
    elif pairs:
        yield Finding("peer access", "ok", "between all devices")


def _driver() -> Finding:
    command = ["nvidia-smi", "--query-gpu=driver_version,mig.mode.current", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("driver", "absent", f"version unknown: {error}")
    found = dict.fromkeys(line.strip() for line in done.stdout.splitlines())
    return Finding("driver", "ok", "; ".join(line.replace(", ", ", MIG ", 1) for line in found))


def _torchvision(torch_version: str) -> Finding:
    try:
        from pipetrain.zoo.torchvision_shim import torchvision
    except Exception as error:
        return Finding("torchvision", "missing", f"{error}; model=resnet18 ... and downloaded data sets need it")
    builds = {str(version).partition("+")[2] for version in (torch_version, torchvision.__version__)}
    if len(builds) == 2 and "" not in builds:
        text = f"{torchvision.__version__}, built for another torch than {torch_version}"
        outside = "outside it `import torchvision` fails, and so do libraries that need it; install both from one index"
        return Finding("torchvision", "limited", f"{text}: models and data sets work in pipetrain; {outside}")
    return Finding("torchvision", "ok", str(torchvision.__version__))


def _machine() -> Iterator[Finding]:
    yield Finding("cores", "ok", str(usable_cores()))
    names = ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
    if all(name in os.sysconf_names for name in names):
        total, unused = (os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") / 1e9 for name in names)
        yield Finding("memory", "ok", f"{total:.1f} GB, {unused:.1f} GB of it unused")
    else:
        yield Finding("memory", "absent", "unknown on this system")
    if (shared := Path("/dev/shm")).exists():
        yield Finding("/dev/shm", "ok", f"{shutil.disk_usage(shared).free / 1e9:.1f} GB free")
    yield _disk(Path.cwd())


def _disk(here: Path) -> Finding:
    try:
        check_writable("outputs", here / "outputs")
    except ConfigError as error:
        return Finding("disk", "missing", f"{error}; runs write there unless hydra.run.dir names another folder")
    free = shutil.disk_usage(here).free
    text = f"{free / 1e9:.1f} GB free in {here}, where runs write"
    if free < _LITTLE:
        return Finding("disk", "limited", f"{text}: little space for checkpoints")
    return Finding("disk", "ok", text)


def _optional() -> Iterator[Finding]:
    for name, use in _OPTIONAL.items():
        version = _version(name)
        yield Finding(name, "ok", f"{version}: {use}") if version else Finding(name, "absent", f"for {use}")


def _version(name: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None
