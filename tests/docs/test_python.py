"""Every block of Python in the documentation is executed on two ranks, or says why not."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.docs.blocks import Block, blocks, name, pages
from tests.docs.session import link_repository

PAGES = [page for page in pages() if any(blocks(page, "python"))]


def compiled(block: Block) -> Any:
    """With the page's line numbers, so that a traceback leads there."""
    tree = ast.parse(block.text)
    ast.increment_lineno(tree, block.line - 1)
    return compile(tree, name(block.page), "exec")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks(page: Path, world: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link_repository(tmp_path)
    monkeypatch.chdir(tmp_path)
    comm = hpccoll.Communicator(world)
    given: dict[str, Any] = {"__name__": "page", "MPI": MPI, "np": np, "hpccoll": hpccoll, "comm": comm}
    try:
        for block in blocks(page, "python"):
            if not block.not_run:
                exec(block.before, given)
                exec(compiled(block), given)
                exec(block.after, given)
    finally:
        for value in {id(value): value for value in [comm, *given.values()]}.values():
            if isinstance(value, hpccoll.Communicator):
                value.close()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_that_are_not_run_are_python(page: Path) -> None:
    for block in blocks(page, "python"):
        compiled(block)
