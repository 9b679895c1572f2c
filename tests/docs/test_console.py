"""What the documentation shows of a terminal is what the commands print."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, name, pages
from tests.docs.comparison import difference, renewed
from tests.docs.session import rehearse, words
from tests.support.virtual_hosts import available

PAGES = [page for page in pages() if any(blocks(page, "console"))]


def runnable(page: Path, root: bool, slow: bool) -> list[Block]:
    """The page's blocks that run, those for root and slow ones only where wanted."""
    these = [block for block in blocks(page, "console") if block.run is not None]
    return [one for one in these if (root or not words(one).root) and (slow or not words(one).slow)]


def check(these: list[Block]) -> None:
    # A short name, since what is printed may break lines within it.
    with tempfile.TemporaryDirectory() as directory:
        faults = list(rehearse(these, Path(directory)))
    if faults:
        pytest.fail("\n\n".join(faults))


QUICK = [page for page in PAGES if runnable(page, root=False, slow=False)]
SLOW = [page for page in PAGES if len(runnable(page, False, True)) > len(runnable(page, False, False))]
ROOT = [page for page in PAGES if len(runnable(page, True, True)) > len(runnable(page, False, True))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    for block in blocks(page, "console"):
        assert (block.run is None) != (not block.not_run), block.where
        words(block)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", QUICK, ids=name)
def test_terminal(page: Path) -> None:
    check(runnable(page, root=False, slow=False))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", SLOW, ids=name)
def test_slow_terminal(page: Path) -> None:
    check(runnable(page, root=False, slow=True))


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ROOT, ids=name)
def test_terminal_with_virtual_hosts(page: Path) -> None:
    reason = available()
    if reason is not None:
        pytest.skip(reason)
    check(runnable(page, root=True, slow=True))


@pytest.mark.parametrize(
    ("printed", "expected", "shape", "same"),
    [
        ("a 1 ms\nb", "a 1 ms\nb", False, True),
        ("a 1 ms\nb", "a 2 ms\nb", False, False),
        ("a 1 ms\nb", "a 20.5 us\nb", True, True),
        ("a 1 ms\nb", "c 1 ms\nb", True, False),
        ("rank 2 is slow", "rank  3 is slow", True, True),
        ("a\nx\ny\nb", "a\n...\nb", False, True),
        ("a\nx\ny\nc", "a\n...\nb", False, False),
        ("a\nb\nc", "a\n...", False, True),
        ("z\na\nb\nc", "a\n...", False, False),
        ("a\nb", "...\nb\n...\na", False, False),
        ("a\nb", "a", False, False),
        ("", "a", True, False),
    ],
)
def test_difference(printed: str, expected: str, shape: bool, same: bool) -> None:
    assert (difference(printed.splitlines(), expected.splitlines(), shape) == "") == same


def test_prose_may_break_elsewhere() -> None:
    page = ["job", "  slow: rank 2 has waited", "    for 3 s", "..."]
    printed = ["job", "  slow: rank 12 has", "    waited for 13.5 s", "end"]
    assert difference(printed, page, shape=True)
    assert difference(printed, page, shape=True, prose=True) == ""
    assert renewed(printed, page, prose=True) == [*printed[:3], "..."]


def test_renewed() -> None:
    page = ["time  2 ms", "...", "rank 3", "", ""]
    assert renewed(["time 11.5 us", "x", "y", "rank 4"], page) == ["time 11.5 us", "...", "rank 4", "", ""]
    assert renewed(["time 11.5 us", "x", "y", "host 4"], page) is None
