import math
import operator

from pipetrain.graph.sizes import Size


def size(value, seen=None):
    seen = [] if seen is None else seen

    def on_comparison(operation, left, right, outcome):
        seen.append((operation, int(left), int(right), outcome))

    return Size.of(value, operator.pos, (value,), on_comparison)


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
    assert list(range(n)) == [0, 1, 2, 3, 4, 5]


def test_comparisons_are_reported():
    seen = []
    n = size(6, seen)
    assert n > 4
    assert not n == 5  # noqa: SIM201
    assert n
    assert seen == [("gt", 6, 4, True), ("eq", 6, 5, False), ("ne", 6, 0, True)]
