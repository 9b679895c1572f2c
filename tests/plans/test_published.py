"""The cost model beside what others have published of NCCL, and what we have recorded of our own plans."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from benchmarks.published.__main__ import DOCUMENT, written
from benchmarks.published.figures import ALONE_BETWEEN_US, ALONE_US, SOURCES, Figure, figures, recorded
from hpccoll.plans.links import CALIBRATED, CLASSES, LinkClass
from hpccoll.plans.text import bytes_text

EVERY = figures()
BOUNDED = [one for one in EVERY if one.bound]
NVLS_TREE, BETWEEN = "NVLS tree", "calls between nodes"  # what else was fitted, to one figure each


def name_of(figure: Figure) -> str:
    size = bytes_text(figure.nbytes).replace(" ", "")
    parts = (figure.source, f"{figure.nodes}x{figure.gpus}", figure.collective, size, figure.algorithm)
    return "-".join(filter(None, parts))


@pytest.mark.parametrize("figure", BOUNDED, ids=name_of)
def test_a_published_figure(figure: Figure) -> None:
    """Within 15 % from 256 MiB on, within a factor of 1.5 at 1 MiB."""
    low, high = figure.bound or (0, 0)
    assert low <= figure.ratio <= high, (figure.predicted(), figure.time_us)


def test_one_machine_of_each_generation_and_several_nodes_are_among_them() -> None:
    assert {one.machine for one in BOUNDED if one.nodes == 1} >= {"dgx-a100", "hgx-h200", "hgx-b200"}
    assert {one.machine for one in BOUNDED if one.nodes == 4} == {"dgx-a100", "aws-p5en", "aws-p6-b200"}
    megabyte = {(one.machine, one.nodes) for one in BOUNDED if one.nbytes == 1 << 20}
    assert megabyte == {("dgx-a100", 1), ("hgx-h200", 1), ("hgx-b200", 1), ("aws-p6-b200", 4)}
    assert {one.source for one in EVERY} == set(SOURCES)
    assert len(BOUNDED) > 60


@pytest.mark.parametrize("what", [NVLS_TREE, BETWEEN])
def test_what_else_was_fitted_has_one_figure_that_is_not_judged(what: str) -> None:
    (figure,) = (one for one in EVERY if one.calibrates == what)
    assert figure.bound is None
    assert figure.ratio == pytest.approx(1, rel=0.005)


def test_a_call_timed_alone_between_nodes_takes_longer_by_one_constant() -> None:
    """By the least time of that sweep; then all of 256 KiB and more agree, large ones without it too."""
    alone = [one for one in EVERY if one.timing == "each call" and one.nodes > 1]
    (fitted,) = (one for one in alone if one.calibrates)
    assert fitted.time_us == min(one.time_us for one in alone)
    assert {one.nbytes for one in alone if not 0.8 < one.ratio < 1.06} == {32 << 10, 64 << 10, 128 << 10}
    assert all(1 - ALONE_BETWEEN_US / one.time_us > 0.85 for one in alone if one.nbytes >= 1 << 30)
    assert ALONE_US < ALONE_BETWEEN_US


@pytest.mark.parametrize("link", CALIBRATED, ids=lambda link: link.name)
def test_a_fitted_latency_has_one_figure_that_nothing_else_is_judged_by(link: LinkClass) -> None:
    (figure,) = (one for one in EVERY if one.calibrates == link.name)
    assert figure.bound is None
    assert figure.nbytes == 32 << 10
    exactly = replace(figure, algorithm="ring, LL" if figure.nodes == 1 else "tree, LL")
    low, _ = exactly.predicted()
    assert low == pytest.approx(figure.time_us, rel=0.02)


def test_nothing_else_is_fitted() -> None:
    fitted = {one.calibrates for one in EVERY} - {"", NVLS_TREE, BETWEEN}
    assert fitted == {link.name for link in CALIBRATED}
    for link in CLASSES.values():
        assert ("the figure of 32 KiB" in link.sources) == (link.name in fitted)


@pytest.mark.parametrize("link", CLASSES.values(), ids=lambda link: link.name)
def test_three_constants_and_their_sources(link: LinkClass) -> None:
    numbers = [getattr(link, one.name) for one in fields(link) if one.name not in ("name", "sources")]
    assert len(numbers) == len(link.sources) == 3
    assert all(number > 0 for number in numbers)
    assert all(link.sources)
    assert link.efficiency <= 1


def test_the_algorithm_is_the_one_that_nccl_was_seen_to_choose() -> None:
    """By the number of GPUs of a node, as NCCL's log said; ring from 2 GiB on between 4 nodes."""
    chosen = {
        (one.machine, one.gpus): one.predicted()[1]
        for one in EVERY
        if one.source == "nvls" and one.collective == "allreduce" and not one.algorithm
    }
    ring, switch = "ring, Simple", "NVLS"
    assert chosen == {
        **{("hgx-h200", gpus): switch if gpus > 4 else ring for gpus in range(4, 9)},
        **{("hgx-b200", gpus): switch if gpus > 5 else ring for gpus in range(4, 9)},
    }
    between = [one for one in EVERY if one.machine == "aws-p5en" and not one.algorithm]
    assert {one.predicted()[1] for one in between} == {ring}


def test_our_own_plans_between_hosts() -> None:
    """All-reduce over 1 Gbit/s, six plans, 2 and 4 hosts, 4 and 16 MiB: none is further off than 15 %."""
    found = recorded()
    assert len(found) == 24
    assert {one.algorithm for one in found if not 0.85 <= one.ratio <= 1.15} == set()
    for hosts, nbytes in {(one.hosts, one.nbytes) for one in found}:
        run = [one for one in found if (one.hosts, one.nbytes) == (hosts, nbytes)]
        fastest = min(run, key=lambda one: one.measured_s)
        assert fastest.algorithm == min(run, key=lambda one: one.predicted_s).algorithm


def test_the_tables_of_the_document_are_those_of_the_model() -> None:
    """`python -m benchmarks.published --write` makes them."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text)
