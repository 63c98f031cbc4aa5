import json

from support.cli import pipetrain

from pipetrain.config.schema import config_dir


def test_list_has_a_row_for_every_file(tmp_path):
    listed = json.loads(pipetrain("list", "--json", cwd=tmp_path).stdout)
    assert list(listed) == ["models", "datasets", "methods", "schedules", "experiments"]
    for kind, rows in listed.items():
        assert rows
        assert all(row["name"] and row["summary"] for row in rows)
        files = {path.stem for path in (config_dir() / kind.removesuffix("s")).rglob("*.yaml")} - {"custom"}
        assert {row["name"].split("/")[-1] for row in rows} == files
    assert {"resnet20", "vgg16", "lenet5"} <= {row["name"] for row in listed["models"]}
    assert all(row["task"] and row["parameters"] > 0 and row["layers"] > 0 for row in listed["models"])
    assert json.loads(pipetrain("list", "methods", "--json", cwd=tmp_path).stdout) == listed["methods"]
    assert "pipeoptim" in pipetrain("list", "methods", cwd=tmp_path).stdout
