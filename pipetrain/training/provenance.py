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

from pipetrain.libraries.processes import usable_cores
from pipetrain.version import __version__

_GIT_SECONDS = 5.0


def provenance(device: str) -> dict[str, Any]:
    """Fields of the summary on the origin of the run; `device` is cpu or cuda."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    return {
        "started_at": _now(),
        "command": shlex.join(sys.orig_argv),
        "git_commit": commit,
        "git_dirty": None if changes is None else bool(changes),
        "host": platform.node(),
        "platform": platform.platform(),
        **machine(device),
    }


def machine(device: str) -> dict[str, Any]:
    """Versions and hardware that the speed of a computation depends on; `device` is cpu or cuda."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    # the driver reports names without a context, and so without using memory on any device
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if device == "cuda" else []
    return {
        "pipetrain_version": __version__,
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
        "cpu": next(models, platform.processor() or platform.machine()),
        "cores": usable_cores(),
        "gpus": gpus,
    }


def occasion() -> dict[str, Any]:
    """Time of a measurement, and the load then: processes that want a core, as the mean of the last minute."""
    with contextlib.suppress(OSError, AttributeError):  # not available on some systems
        load = round(os.getloadavg()[0], 1)
        return {"measured_at": _now(), "load_average": load}
    return {"measured_at": _now()}


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _git(*words: str) -> str | None:
    """Output of git in the working directory; None without git or outside a repository."""
    if (git := shutil.which("git")) is None:
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run([git, *words], env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
