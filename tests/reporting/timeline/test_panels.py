"""What a timeline says of each operation, whatever draws it."""

from support.panels import box, panel

from pipetrain.engine.schedules import Operation
from pipetrain.engine.schedules.placement import Placement
from pipetrain.reporting.timeline.panels import CHUNKS, Box, Panel, by_process, note, tone


def test_boxes_show_operation_weight_read_and_staleness():
    rows = panel().rows
    assert [each.name for each in rows[0]] == [
        "F0.0@v0", "F1.0@v0", "B0.0@v0", "U0", "F2.0@v1", "B1.0@v1", "U1", "B2.0@v2", "U2",
    ]  # fmt: skip
    assert [each.staleness for each in rows[0]] == [0, 1, 0, None, 1, 0, None, 0, None]


def test_minibatches_and_versions_count_from_run_start():
    assert [each.name for each in panel(start=10).rows[1]][:4] == ["F10.0@v10", "B10.0@v10", "U10", "F11.0@v11"]
    assert [each.staleness for each in panel(start=10).rows[0]][:2] == [0, 1]


def test_label_has_the_microbatch_where_there_are_several():
    assert [box(name, 0, 1).label(4) for name in ("F3.2", "B3")] == ["3.2", "3"]
    assert box("F3.0", 0, 1).label(1) == "3"


def test_partial_panel_keeps_visible_part_and_update_at_end():
    whole = Panel("a", 1, "", [[box("F0.0", 0, 1), box("F1.0", 1, 3), box("U0", 3, 3), box("F2.0", 3, 4)]], 0, 4)
    part = whole.between(2, 3)
    assert [(each.name, each.start, each.end) for each in part.rows[0]] == [("F1.0@v0", -1, 1), ("U0@v0", 1, 1)]
    assert (part.begin, part.end) == (0, 1)


def test_process_with_several_stages_has_one_row_in_order_of_time():
    lanes = [[box("F0.0", 0, 1), box("B0.0", 6, 7)], [box("F0.0", 1, 2)], [box("F0.0", 2, 3), box("B0.0", 3, 4)], []]
    rows = by_process(lanes, Placement.looped(4, 2))
    assert [[(str(each.operation), each.start) for each in row] for row in rows] == [
        [("F0.0", 0), ("F0.0", 2), ("B0.0", 3), ("B0.0", 6)], [("F0.0", 1)],
    ]  # fmt: skip
    assert by_process(lanes, None) == lanes


def test_later_stages_of_a_process_are_darker():
    def brightness(color):
        return sum(int(color[i : i + 2], 16) for i in (1, 3, 5))

    for kind, (light, dark) in CHUNKS.items():
        tones = [tone(kind, chunk, 3) for chunk in range(3)]
        assert (tones[0], tones[-1]) == (light, dark)
        assert brightness(tones[0]) > brightness(tones[1]) > brightness(tones[2])


def test_note_explains_only_the_weight_reads_that_are_shown():
    def drawn(read):
        return [Panel("a", 1, "", [[Box(Operation.parse("F0.0"), read, 0, 0, 1)]], 0, 1)]

    assert "+s" in note(drawn("v0+1"))
    assert "δ" in note(drawn("v3-5δ"))
    assert "+s" not in note(drawn("v3-5δ"))
    assert "led s updates ahead" in note(drawn("v3+5δ"))
    assert "+s:" not in note(drawn("v3+5δ"))
    assert "-sδ" not in note(drawn("v3+5δ"))
    assert note(drawn("v0")).endswith("weight version read")
