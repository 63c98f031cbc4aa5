"""The speed-up of pipelined training followed by training without a pipeline (Zhang & Abdelrahman, § 4.2)."""

from fractions import Fraction


def hybrid_speedup(pipelined: Fraction, speedup: Fraction) -> Fraction:
    """n / (n_p / s + n - n_p), with a share n_p / n of pipelined iterations that are s times as fast."""
    return 1 / (pipelined / speedup + 1 - pipelined)


def accelerators(stages: int) -> int:
    """2K + 1 for a pipeline of 2(K + 1) forward and backward stages, which is also the most that it can speed up."""
    return stages - 1
