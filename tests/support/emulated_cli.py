"""Runs a module on emulated GPUs, with its workers: `python -m support.emulated_cli MODULE WORDS`."""

import importlib
import os
import runpy
import sys

from support import strict_nccl

from pipetrain.launch import launcher
from pipetrain.training.builders import machine

_run_worker = launcher.run_worker


def install():
    """Makes the devices in this process, and has every run of it compute on them."""
    strict_nccl.install()
    machine.device_of = lambda kind: "cpu" if kind == "cpu" else "fakegpu"
    launcher.run_worker = run_worker


def run_worker(job, environment, logs, private):
    """Makes them in a worker."""
    os.environ.update(environment)
    install()
    if mutant := os.environ.get("PIPETRAIN_MUTANT"):
        module, _, name = mutant.partition(":")
        getattr(importlib.import_module(module), name)()
    _run_worker(job, environment, logs, private)


def main():
    sys.argv = sys.argv[1:]
    install()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from support import emulated_cli  # under the name by which workers find it

    emulated_cli.main()
