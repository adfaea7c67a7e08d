"""What is fetched once is whole, and pages name the versions that are tried."""

from pathlib import Path

import pytest

from system_test.support.environment import filled_once
from system_test.support.spark_environments import DELTA, ICEBERG, ROOT


def test_an_interrupted_fill_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled_once(tmp_path / "jars", interrupted)
    assert [path.name for path in tmp_path.iterdir()] == [".jars.lock"]
    assert (filled_once(tmp_path / "jars", lambda folder: (folder / "whole").touch()) / "whole").exists()


def test_recipes_name_the_versions_that_they_are_tried_with() -> None:
    page = (ROOT / "docs" / "spark-lakehouse.md").read_text()
    for name, artifact in (("delta_from_archive", DELTA), ("changes_merged", DELTA), ("iceberg_from_archive", ICEBERG)):
        command = f"spark-submit --packages {artifact[0]} {name}.py"
        assert command in page
        assert command in (ROOT / "docs" / "examples" / f"{name}.py").read_text()
