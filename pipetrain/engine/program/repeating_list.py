"""Lists that repeat while a pipeline is full: they take the time and memory of a few minibatches."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar, overload

from typing_extensions import override

Item = TypeVar("Item")

_WHOLE = 256
"""Minibatches up to which a list is made as a whole, besides those of the short ones."""


class RepeatingList(Sequence[Item], Generic[Item]):
    """A list of `head`, of `cycle` repeated `turns` times, and of `tail`; its items are made when they are asked for.

    Args:
        head, cycle, tail: as they are where `cycle` comes once, without the moves.
        turns: number of cycles.
        moved: (item, n) -> the same item n periods later.
    """

    def __init__(
        self,
        head: Sequence[Item],
        cycle: Sequence[Item],
        tail: Sequence[Item],
        turns: int,
        moved: Callable[[Item, int], Item],
    ) -> None:
        self._parts = head, cycle, tail
        self._turns = turns
        self._moved = moved

    @property
    def _ends(self) -> tuple[int, int]:
        """Indices behind the head and behind the last cycle."""
        head, cycle, _ = map(len, self._parts)
        return head, head + self._turns * cycle

    @override
    def __len__(self) -> int:
        return self._ends[1] + len(self._parts[2])

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    @override
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        (head, cycle, tail), (begin, end) = self._parts, self._ends
        index = range(end + len(tail))[index]
        if index < begin:
            return head[index]
        if index >= end:
            return self._moved(tail[index - end], self._turns)
        turn, place = divmod(index - begin, len(cycle))
        return self._moved(cycle[place], turn)

    @override
    def __iter__(self) -> Iterator[Item]:
        head, cycle, tail = self._parts
        return chain(
            head,
            (self._moved(item, turn) for turn in range(self._turns) for item in cycle),
            (self._moved(item, self._turns) for item in tail),
        )

    def with_turns(self, turns: int) -> "RepeatingList[Item]":
        """The list with another number of cycles."""
        return RepeatingList(*self._parts, turns, self._moved)

    def where(self, holds: Callable[[Item], bool]) -> "RepeatingList[Item]":
        """The items for which `holds`, as it does of an item some periods later."""
        head, cycle, tail = ([item for item in part if holds(item)] for part in self._parts)
        return RepeatingList(head, cycle, tail, self._turns, self._moved)


def repeating(
    make: Callable[[int], Sequence[Item]],
    minibatches: int,
    short: int,
    period: int,
    moved: Callable[[Item, int], Item],
) -> Sequence[Item]:
    """The list that `make` gives for a number of minibatches, found from three short ones if these repeat.

    Args:
        make: number of minibatches -> list.
        minibatches: of the list.
        short: number of minibatches in which a pipeline surely fills and drains.
        period: minibatches after which the list repeats.
        moved: (item, n) -> the same item n periods later.
    """
    if minibatches <= 4 * short + _WHOLE:
        return make(minibatches)
    turns, rest = divmod(minibatches - short, period)
    without, once, twice = (make(short + rest + n * period) for n in range(3))
    size = len(once) - len(without)
    begin = next((i for i, (one, other) in enumerate(zip(without, once, strict=False)) if one != other), len(without))
    found = RepeatingList(without[:begin], once[begin : begin + size], without[begin:], turns, moved)
    repeats = all([*found.with_turns(n)] == [*listed] for n, listed in ((1, once), (2, twice)))
    return found if repeats else make(minibatches)


def where(items: Sequence[Item], holds: Callable[[Item], bool]) -> Sequence[Item]:
    """The items of a list for which `holds`, as it does of an item some periods later."""
    return items.where(holds) if isinstance(items, RepeatingList) else [item for item in items if holds(item)]


def pattern(items: Sequence[Item]) -> Sequence[Item]:
    """The list with at most two cycles, in which each step to a next item occurs."""
    return items.with_turns(2) if isinstance(items, RepeatingList) else items
