"""Replicas that train alone, and average a share of their weights, which arrives late (AsyncMesh, arXiv 2601.22442).

After each update, every replica of a stage gives the same randomly chosen elements m of its weights. Some updates
later, their mean a over the replicas takes the place of the replica's own elements, plus a correction for what the
replica has learned in between.
"""

import math
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.executors.replicas.averaging import mean_in_first
from pipetrain.engine.number_range import NumberRange
from pipetrain.engine.seeding import key
from pipetrain.engine.stage.replica_weights import Averaging, Exchange, Gathered, ReplicaWeights
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import as_real, flat

CORRECTIONS = ("ema", "update", "none")
_SHARE = NumberRange(1e-6, 1, most_too=True)
_PURPOSE = 0x5E1EC7
_BLOCK = 2**20
"""Elements of a weight that are divided together: sorting them takes several times their memory."""


@dataclass(frozen=True)
class WeightAveraging(Averaging):
    """The rule by which replicas average their weights.

    With c = W[m] - W'[m], what the replica has changed since it gave W'[m] `delay` updates ago, and k the number of
    updates so far, the new W[m] is a + λ·b[m], b[m] <- β_k·b[m] + (1 - β_k)·c (ema; the first b of a weight is c, and 0
    elsewhere), a + λ·c (update), or a (none).

    Attributes:
        share: p. Each weight is split at random into ceil(1 / p) parts, some of them empty if it has fewer elements.
            Every update averages one part; after the last one, the weight is split again. Weights of more than 2^20
            elements are split in blocks of this size.
        delay: number of updates from giving to averaging.
        correction: one of `CORRECTIONS`.
        strength: λ.
        decay: β until update `rise_after`, from which it goes by half a cosine to `final_decay` at the last one.
        rise_after: None for a decay that stays.
        updates: number of updates of the run.
        seed: of the random division.

    Raises:
        ConfigError: `correction` is none of `CORRECTIONS`, `share` not in [1e-6, 1], or `delay` below 0.
    """

    share: float = 0.05
    delay: int = 10
    correction: str = "ema"
    strength: float = 1.0
    decay: float = 0.5
    final_decay: float = 0.99
    rise_after: int | None = 1000
    updates: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the correction, the share and the delay."""
        _SHARE.check("averaging.share", self.share)
        check_whole("averaging.delay", self.delay, 0)
        if self.correction not in CORRECTIONS:
            raise ConfigError(f"averaging.correction={self.correction}: must be {', '.join(CORRECTIONS[:-1])} or none")

    @property
    def parts(self) -> int:
        """Number of parts of each weight."""
        return math.ceil(1 / self.share - 1e-9)  # as many as 1 / n says, which floats may exceed

    @override
    def of_stage(self, stage: Stage, exchange: Exchange) -> "StageAveraging":
        return StageAveraging(stage, exchange, self)

    def decay_at(self, update: int) -> float:
        """β of an update, counted from 0."""
        if self.rise_after is None or update < self.rise_after:
            return self.decay
        passed = min(1.0, (update - self.rise_after) / max(1, self.updates - self.rise_after - 1))
        return self.decay + (self.final_decay - self.decay) * (1 - math.cos(math.pi * passed)) / 2


class Parts:
    """Division of the elements of a weight into parts that take turns.

    Args:
        weight: complex elements count as two.
        name: of the weight in the whole model.
    """

    def __init__(self, weight: Tensor, name: str, number: int, seed: int) -> None:
        self._device = weight.device
        self._layout = torch.empty_like(as_real(weight.detach()), device="meta")  # which keeps no version alive
        self._number = number
        self._key = seed, _PURPOSE, zlib.crc32(name.encode())
        self._round = -1
        self._orders: list[Tensor] = []

    def elements(self, turn: int) -> Tensor:
        """Places in the weight's memory of the part whose turn it is; their order does not depend on the memory's."""
        begun, part = divmod(turn, self._number)
        if begun != self._round:
            starts = range(0, max(1, self._layout.numel()), _BLOCK)
            self._round, self._orders = begun, [self._shuffled(begun, start) for start in starts]
        return torch.cat([order[part :: self._number] for order in self._orders])

    def _shuffled(self, begun: int, start: int) -> Tensor:
        """Places of the elements of a block in random order."""
        count = min(_BLOCK, self._layout.numel() - start)
        if self._number == 1:  # all elements, for which sorting would only take time
            order = torch.arange(count, device=self._device)
        else:
            order = _splitmix64(key(*self._key, begun), start, count, self._device).argsort()
        order += start
        if not self._layout.is_contiguous():
            shape, strides = self._layout.shape, self._layout.stride()
            inner = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
            steps = zip(inner, shape, strides, strict=True)
            order = torch.stack([order // step % size * stride for step, size, stride in steps]).sum(0)
        return order.int() if self._layout.numel() < 2**31 else order  # half the memory


@dataclass
class _Late:
    """Elements of the weights that all replicas have given after an update.

    Attributes:
        elements: name of a weight -> their places in its memory.
        own: likewise, their values in this replica.
        gathered: weights of one dtype, and their values in all replicas, one after the other.
        known: their means, once all are there.
    """

    elements: dict[str, Tensor]
    own: dict[str, Tensor]
    gathered: list[tuple[list[str], Gathered]] = field(default_factory=list)
    known: dict[str, Tensor] = field(default_factory=dict)

    def means(self) -> dict[str, Tensor] | None:
        """Means over the replicas; None while one has yet to give its elements in this process."""
        if not self.known:
            for names, gathered in self.gathered:
                if (rows := gathered()) is None:
                    self.known = {}
                    return None
                mean = _mean(rows)
                sizes = [self.own[name].numel() for name in names]
                self.known.update(zip(names, mean.split(sizes), strict=True))
            self.gathered = []
        return self.known


class StageAveraging(ReplicaWeights):
    """The averages of one replica of a stage."""

    def __init__(self, stage: Stage, exchange: Exchange, rule: WeightAveraging) -> None:
        self._exchange = exchange
        self._rule = rule
        self._module, self._weights = stage.module, stage.weights  # not the stage, whose part it is
        parameters = stage.optimizer.parameters
        self._parts = {
            name: Parts(weight, stage.full_names[name], rule.parts, rule.seed) for name, weight in parameters.items()
        }
        self._late: deque[_Late] = deque()
        self._updates = 0
        self._ema: dict[str, Tensor] = {}
        self._distance: tuple[Tensor, Tensor] | None = None

    @cached_property
    def _by_dtype(self) -> list[list[str]]:
        """Names of the weights of each dtype."""
        names: dict[torch.dtype, list[str]] = {}
        for name, weight in self._weights.trainable.items():
            names.setdefault(as_real(weight).dtype, []).append(name)
        return list(names.values())

    def _memory(self) -> dict[str, Tensor]:
        """The newest weights in one dimension; autograd does not notice what is written there."""
        return {name: flat(as_real(weight.data)) for name, weight in self._weights.trainable.items()}

    @override
    @torch.no_grad()
    def updated(self) -> None:
        memory = self._memory()
        elements = {name: parts.elements(self._updates) for name, parts in self._parts.items()}
        late = _Late(elements, {name: memory[name].index_select(0, chosen) for name, chosen in elements.items()})
        for names in self._by_dtype:
            if given := [name for name in names if late.own[name].numel()]:
                late.gathered.append((given, self._exchange.begin(torch.cat([late.own[name] for name in given]))))
        self._late.append(late)
        self._updates += 1

    @override
    def bring_in(self) -> bool:
        while len(self._late) > self._rule.delay:
            if (means := self._late[0].means()) is None:
                return False
            self._take_over(self._late.popleft(), means)
        return True

    @torch.no_grad()
    def _take_over(self, late: _Late, means: Mapping[str, Tensor]) -> None:
        memory = self._memory()
        for name, mean in means.items():
            self._replace(name, memory[name], late.elements[name].long(), late.own[name], mean)

    def _replace(self, name: str, weight: Tensor, elements: Tensor, own: Tensor, mean: Tensor) -> None:
        """Puts the mean, and what the replica has changed since, into a weight."""
        rule = self._rule
        if rule.correction != "none":
            change = weight.index_select(0, elements) - own
            if rule.correction == "ema":
                change = self._averaged_change(name, elements, change)
            mean = mean + rule.strength * change
        weight.index_copy_(0, elements, mean)

    def _averaged_change(self, name: str, elements: Tensor, change: Tensor) -> Tensor:
        if name in self._ema:
            average, decay = flat(self._ema[name]), self._rule.decay_at(self._updates - 1)
            change = decay * average.index_select(0, elements) + (1 - decay) * change
        else:
            self._ema[name] = torch.zeros_like(as_real(self._weights.trainable[name]))
            average = flat(self._ema[name])
        average.index_copy_(0, elements, change)
        return change

    @override
    @torch.no_grad()
    def mean(self) -> Iterator[None]:
        average, squares = self._weights.average, list[tuple[Tensor, Tensor]]()
        assert average is not None, "evaluations of replicas that train alone read their mean"
        for name, memory in self._memory().items():
            # in pieces, of which as many are in memory as there are replicas
            for piece, target in zip(
                memory.split(_BLOCK), flat(as_real(average.tensors[name])).split(_BLOCK), strict=True
            ):
                gathered = self._exchange.begin(piece)
                yield
                mean = _mean_of_all(gathered)
                target.copy_(mean)
                squares.append((_square(piece - mean), _square(mean)))
        for buffer in self._module.buffers():
            if buffer.is_floating_point():
                gathered = self._exchange.begin(buffer.detach().clone().reshape(-1))
                yield
                buffer.copy_(_mean_of_all(gathered).view(buffer.shape))
        if squares:
            of_differences, of_means = zip(*squares, strict=True)
            self._distance = torch.stack(of_differences).sum(), torch.stack(of_means).sum()

    @override
    def report(self) -> dict[str, Any]:
        """Distance of the weights to the mean over the replicas at the last drain, relative to the norm of the mean."""
        if self._distance is None:
            return {}
        square, of_mean = (each.item() for each in self._distance)
        return {"replica_distance": math.sqrt(square / of_mean) if of_mean else math.nan}

    @override
    def state(self) -> dict[str, dict[str, Tensor]]:
        found: dict[str, dict[str, Tensor]] = {}
        pairs = [(late, late.means() or {}) for late in self._late]
        for name in self._parts if self._updates else ():
            found[name] = {"updates": torch.tensor(self._updates)}
            if self._late:
                found[name]["own"] = torch.cat([late.own[name] for late in self._late])
                found[name]["mean"] = torch.cat([mean.get(name, late.own[name]) for late, mean in pairs])
            if name in self._ema:
                found[name]["ema"] = self._ema[name]
        return found

    @override
    def load_state(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        if not saved:
            return
        self._updates = int(next(iter(saved.values()))["updates"])
        memory = self._memory()
        for turn in range(max(0, self._updates - self._rule.delay), self._updates):
            elements = {name: parts.elements(turn) for name, parts in self._parts.items()}
            own = {name: memory[name].index_select(0, chosen) for name, chosen in elements.items()}
            self._late.append(_Late(elements, own, known=dict(own)))
        for name, state in saved.items():
            sizes = [late.own[name].numel() for late in self._late]
            if sum(sizes) != (state["own"].numel() if "own" in state else 0):
                raise ConfigError(
                    f"averaging.share={self._rule.share} averaging.delay={self._rule.delay}: the averages of weights "
                    "under way were saved with others; take the same as then"
                )
            if self._late:
                own, mean = (state[each].to(memory[name].device).split(sizes) for each in ("own", "mean"))
                for place, late in enumerate(self._late):
                    late.own[name], late.known[name] = own[place], mean[place]
            if "ema" in state:
                self._ema[name] = torch.empty_like(as_real(self._weights.trainable[name])).copy_(state["ema"])


def _mean(rows: Sequence[Tensor]) -> Tensor:
    """The mean of the replicas' tensors, in new memory."""
    return mean_in_first([rows[0].clone(), *rows[1:]])


def _mean_of_all(gathered: Gathered) -> Tensor:
    rows = gathered()
    assert rows is not None, "all replicas have given it"
    return _mean(rows)


def _splitmix64(seed: int, first: int, count: int, device: torch.device) -> Tensor:
    """Numbers of splitmix64 from `first` on, no two of them equal: unlike torch's, the same on every device."""
    mixed = torch.arange(first + 1, first + count + 1, device=device) * _signed(0x9E3779B97F4A7C15) + seed
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ ((mixed >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return mixed


def _signed(number: int) -> int:
    """The number in 64 bits with a sign, as torch takes it."""
    return number - 2**64 if number >= 2**63 else number


def _square(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()
