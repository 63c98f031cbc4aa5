"""Small profiles to plan for, and the best plan of one by trying all."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

from pipetrain.planning.profile.antichains import AntichainStates
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.planning.search.flat import FlatSearch
from pipetrain.planning.search.hierarchical import HierarchicalSearch

VGG16 = Path(__file__).parents[1] / "planning" / "vgg16" / "graph.txt"
"""As PipeDream's authors published it, byte for byte."""
PUBLISHED = Path(__file__).parents[3] / "shared" / "profiles"
"""More of them, where there are any."""


def layer(compute_s=1.0, output_bytes=0, weight_bytes=0, activation_bytes=0, label="layer"):
    return ProfiledLayer(label, compute_s / 4, compute_s * 3 / 4, output_bytes, weight_bytes, activation_bytes)


def chain(*layers):
    return Profile(tuple(layers), tuple(itertools.pairwise(range(len(layers)))))


def graph(edges, outputs):
    return Profile(tuple(layer(output_bytes=each) for each in outputs), tuple(edges))


def cells(count, seed=0):
    """A graph like NASNet-A's: cells of five sums of two branches each, fed by the two cells before."""
    draw, edges, ends = random.Random(seed), [], [0, 0]
    size = 1
    for _ in range(count):
        sums = []
        for _ in range(5):
            pair = []
            for source in draw.sample([*ends, *sums], 2):
                first, length = size, draw.choice((1, 3, 7))
                size += length
                edges += [(source, first), *((i, i + 1) for i in range(first, size - 1))]
                pair.append(size - 1)
            edges += [(each, size) for each in pair]
            sums.append(size)
            size += 1
        edges += [(each, size) for each in sums]
        ends = [ends[1], size]
        size += 1
    return graph(edges, [draw.randrange(100) for _ in range(size)])


def search(profile, topology, costs, memory=None, replicas=None):
    """The search for the fastest pipeline, as the planner chooses it."""
    states = AntichainStates.of(profile)
    if replicas is not None or len(topology.workers) == 1:
        return FlatSearch(states, topology, memory, costs, replicas)
    return HierarchicalSearch(states, topology, costs, memory)


def splits(total: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum, the order counted."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        yield from ((first, *rest) for rest in splits(total - first))


def best_by_trying(layers, workers, bytes_per_s, synchronization, limit=inf, stage_bytes=None):
    """Seconds for each minibatch of the best pipeline of a chain, by PipeDream's recurrence.

    Args:
        layers: of the chain.
        workers, bytes_per_s: of the levels, innermost first.
        synchronization: (replicas, bytes of weights, bytes/s) -> seconds, beside the computation.
        limit: bytes of a device, of one level.
        stage_bytes: (layers, replicas, devices behind) -> bytes.
    """
    if not workers:
        return sum(each.compute_s for each in layers)
    *inner, members = workers
    *slower, bandwidth = bytes_per_s
    best = inf
    for counts in splits(members):
        for cuts in itertools.combinations(range(1, len(layers)), len(counts) - 1):
            ends = list(layers)
            for cut in cuts:
                sender, receiver = layers[cut - 1], ends[cut]
                ends[cut - 1] = replace(ends[cut - 1], backward_s=ends[cut - 1].backward_s + sender.sender_s)
                ends[cut] = replace(receiver, forward_s=receiver.forward_s + sender.receiver_s)
            parts = [ends[a:b] for a, b in itertools.pairwise([0, *cuts, len(layers)])]
            times = [layers[cut - 1].link_bytes / bandwidth for cut in cuts]
            behind = members
            for part, count in zip(parts, counts, strict=True):
                behind -= count
                if stage_bytes is not None and stage_bytes(part, count, behind) > limit:
                    times.append(inf)
                alone = best_by_trying(part, inner, slower, synchronization)
                weights = sum(each.weight_bytes for each in part)
                times.append(max(alone, synchronization(count, weights, bandwidth)) / count)
            best = min(best, max(times))
    return best
