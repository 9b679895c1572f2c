"""The pictures in the documentation are those of the plans as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpccoll import cli
from tests.docs.blocks import pages
from tests.docs.pictures import drawing_commands, form
from tests.support.launch import REPOSITORY


@pytest.mark.parametrize(
    ("picture", "arguments"), list(drawing_commands()), ids=lambda value: str(value)[:60]
)
def test_picture(picture: str, arguments: list[str], tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.svg"
    assert cli.main([*arguments[:-1], str(drawn)]) == 0
    steps, arrows = form(drawn.read_text())
    assert steps
    assert arrows
    assert form((REPOSITORY / picture).read_text()) == (steps, arrows), "to draw it anew: make pictures"


def test_every_picture_is_there_and_shown() -> None:
    there = {path.stem for path in (REPOSITORY / "docs/pictures").iterdir()}
    assert {Path(picture).stem for picture, _ in drawing_commands()} <= there
    text = "\n".join(page.read_text() for page in pages())
    assert all(f"pictures/{name}." in text for name in there)
