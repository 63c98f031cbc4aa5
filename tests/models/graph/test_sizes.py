import math
import operator

from pipetrain.models.graph.sizes import Size


class Log:
    def __init__(self):
        self.seen = []

    def on_comparison(self, operation, left, right, *, outcome):
        self.seen.append((operation, int(left), int(right), outcome))


def size(value, log=None):
    return Size.of(value, operator.pos, (value,), log or Log())


def test_arithmetic_on_sizes_remembers_what_it_was_computed_of():
    n, k = size(6), size(4)
    for result, operation, operands in (
        (n * 2, operator.mul, (n, 2)),
        (2 * n, operator.mul, (2, n)),
        (n // k, operator.floordiv, (n, k)),
        (7 - n, operator.sub, (7, n)),
    ):
        assert isinstance(result, Size)
        assert result == operation(*map(int, operands))
        assert result.operation is operation
        assert all(a is b for a, b in zip(result.operands, operands, strict=True))


def test_size_is_an_ordinary_number_where_numbers_are_no_sizes():
    n = size(6)
    assert type(n / 4) is float
    assert n / 4 == 1.5
    assert math.ceil(n) is n
    assert {6: "six"}[n] == "six"
    assert list(range(n)) == [0, 1, 2, 3, 4, 5]


def test_comparisons_are_told():
    log = Log()
    n = size(6, log)
    assert n > 4
    assert not n == 5  # noqa: SIM201
    assert n
    assert log.seen == [(operator.gt, 6, 4, True), (operator.eq, 6, 5, False), (operator.ne, 6, 0, True)]
