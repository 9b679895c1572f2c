"""Whatever shape, strides, type, operator, layout and plan: NumPy's answer, and nothing else touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import hpccoll
from tests.support.layouts import LAYOUTS
from tests.support.oracle import (
    BLOCKED,
    BOOL,
    COLLECTIVES,
    NUMBERS,
    ORDERS,
    RAGGED,
    REDUCTIONS,
    Attempt,
    Job,
    Ragged,
    operators,
    perform,
)
from tests.support.places import PLACES

OPERATORS = {
    "SUM": (MPI.SUM, np.add),
    "PROD": (MPI.PROD, np.multiply),
    "MAX": (MPI.MAX, np.maximum),
    "MIN": (MPI.MIN, np.minimum),
}
TYPES = ["int8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex128"]

# How a view of a shape is cut out of a larger array: that array's shape and order, and the cut.
VIEWS = {
    "plain": (lambda shape: shape, "C", lambda whole: whole),
    "fortran": (lambda shape: shape, "F", lambda whole: whole),
    "transposed": (lambda shape: shape[::-1], "C", lambda whole: whole.T),
    "reversed": (lambda shape: shape, "C", lambda whole: whole[::-1]),
    "every other": (lambda shape: (*shape[:-1], 2 * shape[-1]), "C", lambda whole: whole[..., ::2]),
    "inner": (
        lambda shape: [side + 2 for side in shape],
        "C",
        lambda whole: whole[(slice(1, -1),) * whole.ndim],
    ),
}


@st.composite
def calls(draw):
    """One all-reduce, the same on all ranks."""
    dtype = draw(st.sampled_from(TYPES))
    names = ["SUM", "PROD"] if dtype.startswith("complex") else list(OPERATORS)
    return {
        "dtype": np.dtype(dtype),
        "operator": draw(st.sampled_from(names)),
        "shape": tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))),
        "send": draw(st.sampled_from(sorted(VIEWS))),
        "receive": draw(st.sampled_from(sorted(VIEWS))),
        "in place": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
        "layout": draw(st.integers(0, 99)),
        "plan": draw(st.integers(0, 99)),
        "sizes": draw(st.sampled_from([{}, {"small_bytes": 0, "segment_bytes": 64, "chunk_bytes": 64}])),
    }


def view(kind: str, call: dict, fill: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A view that holds `fill`, and the memory all around it."""
    outer, order, cut = VIEWS[kind]
    whole = np.full(outer(call["shape"]), 77, call["dtype"], order)
    part = cut(whole)
    part[...] = fill
    return part, whole


@pytest.mark.ranks(1, 2, 3, 4)
@settings(max_examples=60, deadline=None)
@given(call=calls())
def test_an_allreduce_is_numpys(communicator, call):
    layouts = LAYOUTS[MPI.COMM_WORLD.size]
    comm: hpccoll.Communicator = communicator(
        layout=layouts[call["layout"] % len(layouts)], timeout_s=20, **call["sizes"]
    )
    operator, ufunc = OPERATORS[call["operator"]]
    # Small whole numbers: every sum and product is exact in every type, whatever the order.
    inputs = [
        np.random.default_rng([call["seed"], rank]).integers(0, 3, call["shape"]).astype(call["dtype"])
        for rank in range(comm.size)
    ]
    expected = inputs[0].copy()
    for one in inputs[1:]:
        expected = ufunc(expected, one)
    send, send_memory = view(call["send"], call, inputs[comm.rank])
    receive, memory = view(call["receive"], call, inputs[comm.rank])
    before = send_memory.copy(), memory.copy()
    plans = comm.algorithms("allreduce")
    with comm.forced(plans[call["plan"] % len(plans)]):
        comm.Allreduce(MPI.IN_PLACE if call["in place"] else send, receive, operator)
    assert (receive == expected).all()
    assert (send_memory == before[0]).all()
    receive[...] = inputs[comm.rank]
    assert (memory == before[1]).all(), "memory around the view was written"


SIZES = [
    {},
    {"small_bytes": 0, "segment_bytes": 64, "chunk_bytes": 64},
    {"small_bytes": 200, "segment_bytes": 100, "chunk_bytes": 300, "staging_bytes": 4096, "native": False},
]


@st.composite
def jobs(draw):
    """One call of any collective, the same on all ranks, and where its buffers lie."""
    collective = draw(st.sampled_from(COLLECTIVES))
    dtype = draw(st.sampled_from((*NUMBERS, BOOL)))
    # Blocks of ranks lie along the memory of a Fortran-ordered array.
    places = sorted(set(PLACES) - ({"transposed"} if collective in BLOCKED else set()))
    # What the average of a scan is, test_scan.py says.
    names = [name for name in operators(dtype) if name != "AVG" or not collective.endswith("scan")]
    job = Job(
        collective,
        draw(st.integers(0, 700)),
        dtype,
        draw(st.sampled_from(names)) if collective in REDUCTIONS else "SUM",
        draw(st.integers(0, MPI.COMM_WORLD.size - 1)),
        draw(st.booleans()) if collective != "broadcast" else False,
        draw(st.integers(0, 2**16)),
    )
    return job, PLACES[draw(st.sampled_from(places))]


@pytest.mark.ranks(1, 2, 3, 4)
@settings(max_examples=60, deadline=None)
@given(
    call=jobs(),
    layout=st.integers(0, 99),
    plan=st.integers(0, 99),
    sizes=st.sampled_from(SIZES),
)
def test_any_collective_is_numpys(communicator, call, layout, plan, sizes):
    job, place = call
    layouts = LAYOUTS[MPI.COMM_WORLD.size]
    comm: hpccoll.Communicator = communicator(layout=layouts[layout % len(layouts)], timeout_s=20, **sizes)
    plans = comm.algorithms(job.collective)
    with comm.forced(plans[plan % len(plans)]):
        perform(comm, job, place)


@st.composite
def ragged(draw):
    """One call with counts, the same on all ranks."""
    size = MPI.COMM_WORLD.size
    collective = draw(st.sampled_from(RAGGED))
    blocks = size * size if collective.startswith("alltoall") else size
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 5, 90, 700]), min_size=blocks, max_size=blocks))
    dtype = draw(st.sampled_from((*NUMBERS, BOOL)))
    in_place = draw(st.booleans())
    if in_place and collective.startswith("alltoall"):
        # A rank gives to each as much as it takes from it.
        counts = [counts[min(i, j) * size + max(i, j)] for i in range(size) for j in range(size)]
    return Ragged(
        collective,
        tuple(counts),
        dtype if collective != "alltoallw" else np.dtype(draw(st.sampled_from(["i1", "f4", "f8", "c16"]))),
        draw(st.sampled_from(operators(dtype))) if collective == "reduce_scatter" else "SUM",
        draw(st.integers(0, size - 1)),
        in_place,
        draw(st.integers(0, 2**16)),
        draw(st.sampled_from(ORDERS)),
    )


@pytest.mark.ranks(1, 2, 3, 4)
@settings(max_examples=60, deadline=None)
@given(job=ragged(), layout=st.integers(0, 99), plan=st.integers(0, 99), sizes=st.sampled_from(SIZES))
def test_any_ragged_call_is_numpys(communicator, job, layout, plan, sizes):
    layouts = LAYOUTS[MPI.COMM_WORLD.size]
    comm: hpccoll.Communicator = communicator(layout=layouts[layout % len(layouts)], timeout_s=20, **sizes)
    plans = comm.algorithms(job.plans)
    with comm.forced(plans[plan % len(plans)]):
        perform(comm, job)


@pytest.mark.ranks(2, 3, 4)
@settings(max_examples=20, deadline=None)
@given(
    calls_made=st.lists(
        st.one_of(jobs(), ragged().map(lambda job: (job, PLACES["in_line"]))), min_size=2, max_size=8
    ),
    order=st.integers(0, 999),
    layout=st.integers(0, 99),
    sizes=st.sampled_from(SIZES),
)
def test_any_calls_in_flight_together_are_numpys(communicator, calls_made, order, layout, sizes):
    """Started in one order, waited for in another on every rank."""
    layouts = LAYOUTS[MPI.COMM_WORLD.size]
    comm: hpccoll.Communicator = communicator(layout=layouts[layout % len(layouts)], timeout_s=20, **sizes)
    attempts = [Attempt(comm, job, place) for job, place in calls_made]
    pairs = [(attempt, attempt.start()) for attempt in attempts]
    np.random.default_rng([order, comm.rank]).shuffle(pairs)
    for attempt, request in pairs:
        request.Wait()
        attempt.check()
