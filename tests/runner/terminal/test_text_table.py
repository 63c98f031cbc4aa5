import pytest

from pipetrain.runner.terminal.text_table import (
    both_ends,
    markdown_table,
    markdown_text,
    number_list,
    range_list,
    size_of,
    text_lines,
    text_table,
    unit_of,
)


def test_columns_are_as_wide_as_their_widest_cell_and_aligned():
    assert text_table(("stage", "layers", "time"), [("0", "a to b", "1.5"), ("10", "c", "20.25")], "><>") == [
        "stage  layers   time",
        "    0  a to b    1.5",
        "   10  c       20.25",
    ]


def test_lines_have_no_trailing_spaces_and_may_span_columns():
    assert text_lines([("a", "bb"), "all of the width", ("ccc", "")], "<<") == ["a    bb", "all of the width", "ccc"]


def test_long_table_shows_both_ends_and_says_what_is_left_out():
    rows = [(str(r),) for r in range(17)]
    assert both_ends(rows[:16], "stages, in plan.json") == rows[:16]
    assert both_ends(rows, "stages, in plan.json") == [*rows[:4], "  ...  9 more stages, in plan.json", *rows[13:]]


def test_markdown_table_has_a_rule_below_its_heads():
    assert markdown_table(("", "top1"), [("gpipe", "80.00")]) == ["|  | top1 |", "| --- | --- |", "| gpipe | 80.00 |"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<img src=x onerror=f()> &lt;", "&lt;img src=x onerror=f()&gt; &amp;lt;"),
        ("[look](javascript:f())", r"\[look\](javascript:f())"),
        (r"\| `code`", r"\\\| \`code\`"),
        ("\x1b]0;title\x07\n", r"?\]0;title??"),
        ("pipeoptim batch_size=4 50.00 ± 1.0 -", "pipeoptim batch_size=4 50.00 ± 1.0 -"),
    ],
)
def test_markdown_text_is_neither_link_nor_html_nor_cell(text, shown):
    assert markdown_text(text) == shown


def test_no_numbers_are_a_dash():
    assert (number_list([1, 2]), number_list([])) == ("1,2", "-")
    assert range_list([]) == "-"


def test_numbers_in_a_row_are_a_range():
    assert [range_list(each) for each in (range(3), [4], [0, 2, 3, 4, 7, 8])] == ["0-2", "4", "0,2-4,7-8"]


def test_sizes_are_in_the_largest_unit_of_which_there_is_one():
    assert [size_of(count) for count in (0, 999, 999.6, 38_312, 6.72e6, 1e16)] == [
        "0 B",
        "999 B",
        "1 kB",
        "38.3 kB",
        "6.72 MB",
        "10000 TB",
    ]
    assert unit_of(6.72e6) == ("MB", 1e6)
