"""Runs a module whose workers use NCCL although they share GPUs: `python -m support.shared_gpu_cli MODULE WORDS`.

NCCL treats them as running on different machines, and connects them over the network.
"""

import runpy
import sys

from pipetrain.runner.launch import launcher

_run_worker = launcher.run_worker


def run_worker(job, environment, logs, private):
    """Gives NCCL another machine for each worker."""
    _run_worker(job, {**environment, "NCCL_HOSTID": environment["RANK"]}, logs, private)


def main():
    sys.argv = sys.argv[1:]
    launcher.run_worker = run_worker
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from support import shared_gpu_cli  # under the name by which workers find it

    shared_gpu_cli.main()
