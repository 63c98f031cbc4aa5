import pytest

from pipetrain.engine.errors import ConfigError, check_whole, is_whole, one_line


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (2.0, "2.0"), ("3", "3"), (True, "true"), (None, "null")])
def test_only_whole_numbers_from_the_least_on_pass(value, shown):
    with pytest.raises(ConfigError) as refused:
        check_whole("train.batch_size", value, least=1)
    assert str(refused.value) == f"train.batch_size={shown}: must be a whole number of at least 1"
    check_whole("train.batch_size", 1, least=1)


def test_refusal_of_a_number_says_what_else_works():
    with pytest.raises(ConfigError, match="at least 1, or null for all samples"):
        check_whole("dataset.limit", -1, least=1, otherwise="or null for all samples")


def test_true_and_false_are_no_whole_numbers():
    assert [is_whole(value) for value in (0, 1, True, False, 1.0)] == [True, True, False, False, False]


def test_one_line_joins_the_lines_of_a_message():
    assert one_line(ValueError("a\n  b\tc")) == one_line("a\n  b\tc") == "a b c"
