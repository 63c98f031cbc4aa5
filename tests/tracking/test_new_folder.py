"""Folders that nobody else has."""

from concurrent.futures import ThreadPoolExecutor

from pipetrain.tracking.new_folder import new_folder


def test_those_who_ask_for_the_same_folder_at_once_get_one_each(tmp_path):
    wanted = tmp_path / "outputs" / "2026-01-02" / "03-04-05"
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(new_folder, [wanted] * 8))
    names = {"03-04-05", *(f"03-04-05-{number}" for number in range(2, 9))}
    assert {folder.name for folder in folders} == names == {path.name for path in wanted.parent.iterdir()}
