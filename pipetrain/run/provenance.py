"""Provenance of a run: versions, commit, machine, command line."""

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from pipetrain import __version__
from pipetrain.libraries.processes import usable_cores

_GIT_SECONDS = 5.0


def provenance(device: str) -> dict[str, Any]:
    """The fields of the summary that say where the run comes from; `device` is cpu or cuda."""
    return {
        "started_at": _now(),
        "command": shlex.join(sys.orig_argv),
        **_git(Path.cwd()),
        "host": platform.node(),
        "platform": platform.platform(),
        **machine(device),
    }


def machine(device: str) -> dict[str, Any]:
    """Versions and hardware that the speed of a computation depends on; `device` is cpu or cuda."""
    return {
        "pipetrain_version": __version__,
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
        "cpu": _cpu(),
        "cores": usable_cores(),
        "gpus": _gpus() if device == "cuda" else [],
    }


def occasion() -> dict[str, Any]:
    """Time of a measurement, and the load then: processes that want a core, as the mean of the last minute."""
    with contextlib.suppress(OSError, AttributeError):  # not available on some systems
        load = round(os.getloadavg()[0], 1)
        return {"measured_at": _now(), "load_average": load}
    return {"measured_at": _now()}


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _git(folder: Path) -> dict[str, Any]:
    """The commit of the repository around a folder, and whether files that it tracks have changed since."""
    commit = _output("rev-parse", "HEAD", folder=folder)
    changes = _output("status", "--porcelain", "--untracked-files=no", folder=folder) if commit else None
    return {"git_commit": commit, "git_dirty": None if changes is None else bool(changes)}


def _output(*words: str, folder: Path) -> str | None:
    """Output of git; None without git or outside a repository."""
    if (git := shutil.which("git")) is None:
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            [git, "-C", folder, *words], env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    """Name of the processor, as far as the system reports it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpus() -> list[str]:
    """Names of the devices; the driver reports them without a context, and so without using memory, on any device."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
