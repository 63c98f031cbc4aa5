"""Seeds that depend on what is being computed, never on the process that computes it."""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def key(*numbers: int) -> int:
    """A seed in [0, 2**63) for the place in a run that `numbers` name, such as (seed, epoch, sample).

    Each number is absorbed by one step of splitmix64 (Steele, Lea, Flood 2014: the golden-ratio increment and the
    finalizer known as Mix13), in order, so that key(1, 2), key(2, 1) and key(1, 2, 0) differ. Numbers count modulo
    2**64, negative ones included. The values are part of a run's reproducibility: integer arithmetic alone makes them,
    so they are the same on every platform and must stay the same in every version.

    torch's generator on the CPU keeps the lowest 32 bits of a seed; they are as well mixed as the others.
    """
    state = 0
    for number in numbers:
        state = (state + _GAMMA + number) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1
