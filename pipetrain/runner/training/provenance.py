"""Provenance of a run: versions, commit, machine, command line."""

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from pipetrain.engine.processes import usable_cores
from pipetrain.version import __version__

_GIT_SECONDS = 5.0


def provenance(device: str) -> dict[str, Any]:
    """Fields of the summary on the origin of the run; `device` is cpu or cuda."""
    commit = _git("rev-parse", "HEAD")
    return {
        "started_at": _now(),
        "command": shlex.join(sys.orig_argv),
        "git_commit": commit,
        "git_dirty": _differs(commit) if commit else None,
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


def _differs(commit: str) -> bool | None:
    """True if tracked files differ from the commit; None if git cannot say.

    The repository may be another's, and its configuration names commands that git runs when it looks at files, such as
    filters. So git sees it through a folder with a configuration of its own.
    """
    found = _git(
        "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-path", "objects", "--git-path", "index"
    )
    if found is None or len(paths := found.splitlines()) != 3:
        return None
    top, objects, index = paths
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "refs").mkdir()
        (Path(empty) / "HEAD").write_text(commit)
        places = {"GIT_DIR": empty, "GIT_WORK_TREE": top, "GIT_OBJECT_DIRECTORY": objects, "GIT_INDEX_FILE": index}
        names = _git("diff", "--name-only", "--no-ext-diff", "--ignore-submodules=dirty", "HEAD", **places)
    return None if names is None else bool(names)


def _git(*words: str, **variables: str) -> str | None:
    """Output of git, which only reads, in the working directory; None without git or outside a repository."""
    if (git := shutil.which("git")) is None:
        return None
    read_only = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
    environment = {**os.environ, **read_only, **variables}
    try:
        done = subprocess.run([git, *words], env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
