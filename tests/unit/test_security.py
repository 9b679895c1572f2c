"""What comes from other processes: nothing of it is run, and no room is made for more than is sensible."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ResourceError, TopologyError
from hpccoll.memory import shared
from hpccoll.topology import agreement

ROOT = Path(hpccoll.__file__).parent
RUNS_WHAT_IT_READS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
# mpi4py's methods that pickle; the commands (cli) say what they have measured by them, rank to rank.
OBJECTS = {
    "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
    "send", "recv", "isend", "irecv", "bsend", "ssend", "sendrecv",
}  # fmt: skip
COMMUNICATORS = {"comm", "private", "_private", "world", "_world", "plain"}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield from ((str(path.relative_to(ROOT)), node) for node in ast.walk(ast.parse(path.read_text())))


def names(node: ast.expr) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_nothing_that_was_received_is_run() -> None:
    found = []
    for where, node in nodes():
        if isinstance(node, ast.Import):
            found += [(where, one.name) for one in node.names if one.name.split(".")[0] in RUNS_WHAT_IT_READS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUNS_WHAT_IT_READS:
            found.append((where, str(node.module)))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in RUNS_TEXT:
                found.append((where, node.func.id))
            if any(one.arg == "allow_pickle" for one in node.keywords):
                found.append((where, "allow_pickle"))
    assert found == []


def test_the_library_itself_sends_no_objects() -> None:
    found = [
        (where, node.func.attr)
        for where, node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in OBJECTS
        and names(node.func.value) in COMMUNICATORS
        and not where.startswith("cli/")
    ]
    assert found == []


@pytest.mark.ranks(3)
def test_room_is_not_made_for_whatever_others_say(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "MOST_BYTES", 100)
    monkeypatch.setattr(shared, "MOST_BYTES", 100)
    deadline = time.monotonic() + 20
    said = b"x" * (101 if world.rank == 1 else 3)
    with pytest.raises(TopologyError, match="words: a rank has 101 bytes to say, of at most 100"):
        agreement.gather(world, said, deadline, "words")
    with pytest.raises(ResourceError, match="a rank has 101 bytes to say, of at most 100"):
        list(shared.collected(world, said))
    assert agreement.gather(world, said[:100], deadline, "words")[1] == b"x" * 100
