"""Runs a module whose workers use NCCL although they share GPUs: `python -m support.shared_gpu_cli MODULE WORDS`.

NCCL takes them for processes of several machines, and connects them through the network.
"""

import runpy
import sys

from pipetrain.launch import launcher

_run_worker = launcher.run_worker


def run_worker(job, environment, logs):
    """Has NCCL take the worker for the only one of its machine."""
    _run_worker(job, {**environment, "NCCL_HOSTID": environment["RANK"]}, logs)


def main():
    sys.argv = sys.argv[1:]
    launcher.run_worker = run_worker
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from support import shared_gpu_cli  # under the name by which workers find it

    shared_gpu_cli.main()
