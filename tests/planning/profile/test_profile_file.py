import pytest
from support.refusals import assert_refused

from pipetrain.planning.profile.profile_file import parse_graph, read_profile


def line(name, label="ReLU(inplace)", forward="1.500", output="8.0", rest=""):
    values = f"forward_compute_time={forward}, backward_compute_time=2.250, activation_size={output}"
    return f"{name} -- {label} -- {values}, parameter_size=4.000{rest}\n"


def test_layers_and_edges_are_read_in_any_order_of_lines():
    text = (
        "\tnode2 -- node10\n"
        + line("node10")
        + line("node2", "Conv2d(3, 64, kernel_size=(3, 3))", rest=" -- stage_id=1")
    )
    profile = parse_graph(text)
    first, second = profile.layers
    assert (first.label, second.label) == ("Conv2d(3, 64, kernel_size=(3, 3))", "ReLU(inplace)")
    assert (first.forward_s, first.backward_s, first.output_bytes, first.weight_bytes) == (0.0015, 0.00225, 8, 4)
    assert profile.edges == ((0, 1),)


def test_the_sizes_of_a_tuple_are_added_up():
    assert parse_graph(line("node1", output="[6291456.0; 131072.0; 131072.0]")).layers[0].output_bytes == 6553600


def test_data_and_unused_entries_of_tuples_are_no_layers():
    text = line("node1", "Input0", forward="635.9") + line("node2", "LSTM(4, 4)") + line("node3", "__getitem__(0)")
    text += line("node4", "__getitem__(1)") + line("node5", "Linear(4, 4)")
    text += "\tnode1 -- node2\n\tnode2 -- node3\n\tnode2 -- node4\n\tnode3 -- node5\n"
    profile = parse_graph(text)
    assert [layer.label for layer in profile.layers] == ["LSTM(4, 4)", "__getitem__(0)", "Linear(4, 4)"]
    assert profile.edges == ((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line("node1") + "what is this\n", "line 2: 'what is this' is neither a layer nor an edge"),
        (line("node1") + line("node1"), "line 2: node1 has a line already"),
        (line("node1") + "\tnode1 -- node7\n", "line 2: the edge node1 -- node7 names node7, which has no line"),
        ("node1 -- ReLU -- activation_size=1.0\n", "line 1: node1 lacks forward_compute_time, backward_compute_time"),
        (line("node1", forward="fast"), "line 1: forward_compute_time=fast: must be a number of at least 0"),
        (line("node1", output="[1.0; -2.0]"), r"line 1: activation_size=\[1.0; -2.0\]: must be a number of at least 0"),
        (line("node1", forward="nan"), "forward_compute_time=nan"),
    ],
)
def test_a_malformed_line_is_named(text, message):
    assert_refused(message, parse_graph, text)


def test_a_profile_without_times_is_refused(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(line("node1", forward="0.0").replace("2.250", "0.0"))
    assert_refused(r"graph\.txt: all times are 0, and pipelines are compared by them", read_profile, path)
