"""Described machines, written once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Tree = Callable[[str], Path]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The root directory of a machine of `fixtures`, by name; not to be changed."""
    from tests.topology.fixtures.broken import BROKEN
    from tests.topology.fixtures.machines import HEALTHY, workstation
    from tests.topology.fixtures.others import OTHERS
    from tests.topology.fixtures.tree import write

    described = {**HEALTHY, **OTHERS, **BROKEN, "bridged_workstation": lambda: workstation(bridges=True)}
    written: dict[str, Path] = {}

    def root(name: str) -> Path:
        if name not in written:
            written[name] = write(described[name](), tmp_path_factory.mktemp(name))
        return written[name]

    return root
