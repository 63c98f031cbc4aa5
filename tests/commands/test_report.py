import pytest
from support.cli import pipetrain


@pytest.mark.parametrize(
    "words",
    [("report", "staleness", "--stages", "0"), ("report", "runs", "nowhere"), ("report",), ("report", "everything")],
)
def test_wrong_use_of_the_report_is_one_line(words, tmp_path):
    result = pipetrain(*words, cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
