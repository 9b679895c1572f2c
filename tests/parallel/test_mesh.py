"""Meshes on ranks: groups and their communicators, wrong arguments on all ranks, warnings, counted bytes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.parallel import SHIFT, Mesh, Use
from hpccoll.parallel.counted import CountedCommunicator
from hpccoll.parallel.grid import cut, nodes_of

BAD_ORDER = ("data", "pipeline", "tensor")


@contextlib.contextmanager
def communicator(layout: str) -> Iterator[hpccoll.Communicator]:
    with hpccoll.Communicator(MPI.COMM_WORLD, layout=layout, tuning="off") as comm:
        yield comm


def mesh_of(comm: hpccoll.Communicator, **arguments: Any) -> Mesh:
    """A mesh of which tensor groups may cross nodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return Mesh(comm, **arguments)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2", "cyclic:2+2", "3+1", "2+1+1"])
def test_groups_are_those_of_the_placement(layout: str) -> None:
    with communicator(layout) as comm, mesh_of(comm, tensor=2, data=-1) as mesh:
        assert mesh.sizes == {"tensor": 2, "context": 1, "expert": 1, "data": 2, "pipeline": 1}
        assert mesh.rank_at(**mesh.coordinates) == comm.rank
        for name in ("tensor", "data", "pipeline", "context", "expert"):
            group = getattr(mesh, name)
            assert type(group) is hpccoll.Communicator
            assert (group.size, group.rank) == (mesh.sizes[name], mesh.coordinates[name])
            (mine,) = (ranks for ranks in mesh.placement.groups(name) if comm.rank in ranks)
            everybody = np.empty(group.size, np.int64)
            group.Allgather(np.array([comm.rank]), everybody)
            assert tuple(everybody) == mine
        both = mesh.group("data", "tensor")
        total = np.zeros(1)
        both.Allreduce(np.array([1.0 + comm.rank]), total)
        assert total[0] == 10.0
        assert mesh.group("tensor", "data") is both


@pytest.mark.ranks(4)
def test_tensor_groups_stay_inside_nodes_where_they_can() -> None:
    for layout in ("2+2", "cyclic:2+2"):
        with communicator(layout) as comm, Mesh(comm, tensor=2, data=2) as mesh:  # and nothing is warned of
            assert mesh.tensor.node_count == 1
            assert mesh.data.node_count == 2


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 5, "tensor": 2}, r"ranks are not data 5 x tensor 2 = 10"),
        ({"data": -1, "tensor": -1}, "only one dimension can be left"),
        ({"order": ("depth",)}, "must name some of"),
        ({"grid": (5, 5)}, "ranks are not axis 0 5 x axis 1 5"),
        ({"grid": (2, -1), "tensor": 2}, "a grid has no other dimensions"),
        ({"grid": (), "data": 1}, "grid has 0 axes"),
        ({"grid": (-1,), "periods": (True, False)}, "periods has 2 entries"),
        ({"periods": (True,), "data": -1}, "there is none"),
        ({"data": -1, "uses": [Use("tensor", "allred", 8)]}, "a use names collective 'allred'"),
        ({"data": -1, "uses": [Use("tensor", "allreduce", 8, dtype="x")]}, "an argument cannot be read"),
        ({"data": -1, "uses": [Use("depth", "allreduce", 8)]}, "a use names dimension 'depth'"),
    ],
)
def test_wrong_arguments_are_errors_on_all_ranks(arguments: dict[str, Any], message: str) -> None:
    with communicator("") as comm:
        with pytest.raises(hpccoll.UsageError, match=message):
            Mesh(comm, **arguments)
        comm.Barrier()  # it is as before


@pytest.mark.ranks(3)
def test_a_wrong_argument_on_one_rank_is_an_error_on_all() -> None:
    with communicator("") as comm:
        for wrong in ("three", 2.5, 1 << 40):
            size = wrong if comm.rank == 1 else 3
            message = "tensor is" if comm.rank == 1 else "rank 1 passed wrong arguments"
            with pytest.raises(hpccoll.UsageError, match=message):
                Mesh(comm, tensor=size)
        with pytest.raises(hpccoll.MismatchError, match=r"ranks 0, 2: tensor 3.*rank 1: data 3"):
            Mesh(comm, **{"data" if comm.rank == 1 else "tensor": 3})
        comm.Barrier()


@pytest.mark.ranks(2)
def test_ranks_that_ask_for_different_groups() -> None:
    with communicator("") as comm, Mesh(comm, data=2) as mesh:
        names = ("data", "tensor") if comm.rank else ("data",)
        with pytest.raises(hpccoll.MismatchError, match="ranks ask for groups of different dimensions"):
            mesh.group(*names)
        if comm.rank:
            with pytest.raises(hpccoll.MismatchError, match="rank 1: none that there is"):
                mesh.group("depth")
        else:
            with pytest.raises(hpccoll.MismatchError, match="rank 0: data; rank 1"):
                mesh.data  # noqa: B018
        assert mesh.data.size == 2
        for wrong in ((), ("depth",), ("data", "data")):
            with pytest.raises(hpccoll.UsageError, match="no group of dimensions"):
                mesh.group(*wrong)
        with pytest.raises(hpccoll.UsageError, match="has no grid"):
            mesh.cart  # noqa: B018


@pytest.mark.ranks(2)
def test_the_life_of_a_mesh() -> None:
    with pytest.raises(hpccoll.UsageError, match="2 ranks are not"):
        Mesh(MPI.COMM_WORLD, data=5)
    mesh = Mesh(MPI.COMM_WORLD, data=-1)  # also of MPI's own communicator
    group = mesh.data
    mesh.close()
    mesh.close()
    assert group == MPI.COMM_NULL
    with pytest.raises(hpccoll.UsageError, match="closed"):
        mesh.data  # noqa: B018
    other = Mesh(MPI.COMM_WORLD, data=-1)
    with contextlib.suppress(RuntimeError), other:
        other.data.Barrier()
        raise RuntimeError("of the program")
    with pytest.raises(hpccoll.UsageError, match="closed"):
        other.group("data")
    assert "data=2" in repr(mesh)


@pytest.mark.ranks(4)
def test_groups_that_cross_nodes_are_warned_of_with_the_bytes_that_are_then_counted() -> None:
    uses = [
        Use("tensor", "allreduce", 80_000, 3, "float64"),
        Use("tensor", "allreduce", 16, 5, "float64"),
        Use("data", "allgather", 64_000, 1, "float64"),
    ]
    for layout, order in (("2+2", BAD_ORDER), ("3+1", ()), ("1+1+1+1", ())):
        with communicator(layout) as comm:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                mesh = Mesh(comm, tensor=2, data=2, order=order, uses=uses, counted=True)
            with mesh:
                for nbytes, times in ((80_000, 3), (16, 5)):
                    for _ in range(times):
                        mesh.tensor.Allreduce(MPI.IN_PLACE, np.ones(nbytes // 8))
                mesh.data.Allgather(np.ones(4000), np.empty(8000))
                counted = mesh.traffic()
                assert counted["tensor"] == mesh.forecast()["tensor"]
                assert counted["data"] == mesh.forecast()["data"]
                assert counted["tensor"]["network"] > 0
                if comm.rank == 0:
                    (warning,) = (str(one.message) for one in caught)
                    assert "tensor groups lie on several nodes" in warning
                    for level, nbytes in counted["tensor"].items():
                        assert f"{level} " in warning
                        assert f"({nbytes} bytes)" in warning
                else:
                    assert not caught


@pytest.mark.ranks(4)
def test_without_uses_a_warning_speaks_of_a_sample() -> None:
    with communicator("1+1+1+1") as comm, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Mesh(comm, tensor=4).close()
    if MPI.COMM_WORLD.rank == 0:
        # 2 (n-1) of 1 MiB, all of it between nodes.
        figures = "where each of them all-reduces 1 MiB: network 6 MiB (6291456 bytes)"
        assert figures in str(caught[0].message)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("layout", ["", "2+1"])
def test_counted_calls_are_those_of_the_tally(layout: str) -> None:
    with communicator(layout) as comm, mesh_of(comm, tensor=-1, counted=True) as mesh:
        group = mesh.tensor
        assert isinstance(group, CountedCommunicator)
        for count in (1, 3000, 90_000):
            array, whole = np.ones(count), np.empty(3 * count)
            for _ in range(3):
                group.Allreduce(MPI.IN_PLACE, array, MPI.MAX)
                group.Allgather(array, whole)
                group.Reduce_scatter_block(whole, array)
                group.Bcast(array, root=1)
                group.Iallreduce(MPI.IN_PLACE, array).Wait()
                group.Allgatherv(array, [whole, [count] * 3])
                group.Allreduce(MPI.IN_PLACE, [array, MPI.DOUBLE])
                group.Reduce_scatter(whole, array, [count] * 3)
            with group.forced("ring"):
                group.Allreduce(MPI.IN_PLACE, array)
        group.Barrier()
        assert group.plans == group.tally()
        assert group.uncounted == 0
        assert set(group.collected) <= {"NODE", "network"}
        before = group.collected
        group.Allreduce(MPI.IN_PLACE, array)
        assert group.collected != before
        group.reset()
        assert not group.collected


@pytest.mark.ranks(3)
def test_what_is_not_counted_is_noted() -> None:
    with communicator("2+1") as comm, mesh_of(comm, pipeline=-1, counted=True) as mesh:
        group = mesh.pipeline
        assert isinstance(group, CountedCommunicator)
        rows = np.arange(3, dtype=float)
        group.Alltoallv([rows, [1, 1, 1]], [rows.copy(), [1, 1, 1]])
        group.Reduce_scatter(rows, np.empty(1))
        group.Allreduce_init(MPI.IN_PLACE, rows).Free()
        assert (group.uncounted, sum(group.plans.values())) == (3, 0)
        request = group.Isend(rows, (comm.rank + 1) % 3)
        group.Recv(np.empty(3), (comm.rank - 1) % 3)
        request.Wait()
        group.Send(rows, MPI.PROC_NULL)
        total = mesh.traffic()["pipeline"]
        assert total == {"NODE": 24, "network": 48}
        again = Use("pipeline", SHIFT, 24)
        assert mesh.forecast(uses=[again])["pipeline"] == {"NODE": 24, "network": 24}
    with Mesh(MPI.COMM_WORLD, data=-1) as plain, pytest.raises(hpccoll.UsageError, match="does not count"):
        plain.traffic()


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("layout", "grid"), [("cyclic:2+2", (2, 2)), ("2+2", (4, 1)), ("3+1", (2, -1))])
def test_a_grid_of_which_neighbours_share_nodes(layout: str, grid: tuple[int, int]) -> None:
    shape = (2, 2) if -1 in grid else grid
    with communicator(layout) as comm, Mesh(comm, grid=grid, periods=(False, True)) as mesh:
        cart = mesh.cart
        assert isinstance(cart, hpccoll.CartCommunicator)
        assert cart.Get_topo()[:2] == ([*shape], [0, 1])
        assert tuple(cart.Get_coords(cart.rank)) == (mesh.coordinates["axis 0"], mesh.coordinates["axis 1"])
        ranks = np.empty(4, np.int64)
        cart.Allgather(np.array([comm.rank]), ranks)
        assert tuple(ranks) == mesh.placement.line
        # MPI's own grid, with and without leave to reorder ranks, crosses nodes as often or more.
        periods, machine = (False, True), comm.machine.layout
        ours = cut(nodes_of(machine, mesh.placement.line, shape), periods)
        for reorder in (False, True):
            theirs = MPI.COMM_WORLD.Create_cart(shape, periods, reorder)
            order = MPI.COMM_WORLD.allgather((theirs.rank, comm.rank))
            line = [rank for _, rank in sorted(order)]
            theirs.Free()
            assert ours <= cut(nodes_of(machine, line, shape), periods)
        if layout == "cyclic:2+2":
            assert ours < cut(nodes_of(machine, range(4), shape), periods)
        halo = np.empty(4)
        cart.Neighbor_allgather(np.array([float(comm.rank)]), halo)
        with pytest.raises(hpccoll.UsageError, match="no named groups"):
            mesh.tensor  # noqa: B018
