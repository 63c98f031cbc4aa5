"""`pipetrain doctor`: what this machine has, and what is missing for what."""

import argparse
import platform

from pipetrain import __version__
from pipetrain.commands import Subparsers
from pipetrain.errors import ExitCode
from pipetrain.run.cores import usable_cores


def add_parser(subparsers: Subparsers) -> None:
    """Adds `doctor`."""
    text = "check this machine: devices, backends, optional packages"
    subparsers.add_parser("doctor", help=text, description=text).set_defaults(carry_out=carry_out)


def carry_out(_options: argparse.Namespace) -> ExitCode:
    """Prints one line for each thing looked at; fails where a run on the CPU would not work."""
    rows: list[tuple[str, bool, str]] = [("pipetrain", True, f"{__version__}, Python {platform.python_version()}")]
    rows.append(_torch())
    if rows[-1][1]:
        rows += [_devices(), *_backends(), _torchvision(), _tensorboard()]
    rows.append(("cores", True, str(usable_cores())))
    for name, fine, text in rows:
        print(f"{'ok' if fine else '--':3} {name:12} {text}")
    needed = ("torch", "gloo")
    return ExitCode.COMPLETED if all(fine for name, fine, _ in rows if name in needed) else ExitCode.FAILED


def _torch() -> tuple[str, bool, str]:
    try:
        import torch
    except ImportError as error:
        return "torch", False, f"{error}; pip install torch: without it nothing runs"
    return "torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads"


def _devices() -> tuple[str, bool, str]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch is built for CUDA {built} but finds no device" if built else "torch is a CPU build"
        return "cuda", False, f"{why}; runs use device=cpu"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return "cuda", True, f"{len(names)} device(s): {', '.join(names)}; more stages than devices share them"


def _backends() -> list[tuple[str, bool, str]]:
    import torch.distributed as dist

    gloo = dist.is_available() and dist.is_gloo_available()
    nccl = dist.is_available() and dist.is_nccl_available()
    return [
        (
            "gloo",
            gloo,
            "messages on the CPU" if gloo else "missing: executor=distributed cannot run; executor=simulated can",
        ),
        (
            "nccl",
            nccl,
            "messages between GPUs" if nccl else "missing: stages on GPUs exchange messages through the host",
        ),
    ]


def _torchvision() -> tuple[str, bool, str]:
    try:
        from pipetrain.torchvision_shim import torchvision
    except Exception as error:
        return "torchvision", False, f"{error}; model=resnet18 ... and downloaded data sets need it"
    return "torchvision", True, torchvision.__version__


def _tensorboard() -> tuple[str, bool, str]:
    try:
        import tensorboard
    except ImportError as error:
        return "tensorboard", False, f"{error}; runs write event files with it"
    return "tensorboard", True, str(tensorboard.__version__)
