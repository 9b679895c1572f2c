"""The command line of `hpccoll bench`."""

from __future__ import annotations

import argparse

import pytest

from hpccoll.cli.bench.flags import REFUSED, configure
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.options import Options, read
from hpccoll.errors import UsageError


def parsed(
    arguments: str = "", *, operation: str = "allreduce", environ: dict[str, str] | None = None
) -> Options:
    parser = argparse.ArgumentParser()
    configure(parser)
    return read(parser.parse_args([operation, *arguments.split()]), environ or {})


def test_defaults_are_those_of_nccl_tests_but_for_the_slowest_rank() -> None:
    options = parsed()
    assert options.min_bytes == options.max_bytes == 32 * 2**20
    assert (options.step_bytes, options.step_factor) == (2**20, 0)
    assert (options.iterations, options.warmup, options.calls, options.cycles) == (20, 1, 1, 1)
    assert options.check == 1
    assert (options.redops, options.datatypes, options.roots) == (("sum",), ("float",), 0)
    assert options.average == 3
    assert list(options.sizes) == [32 * 2**20]


def test_every_flag_arrives() -> None:
    options = parsed(
        "-b 8 -e 1M -f 4 -n 7 -w 2 -m 3 -N 2 -c 5 -o max -d double -r 3 -z 1 -T 2.5 -C 1 -S 1 -a 1 -M 1 -u 3 "
        "-I 1 -K 2 --algorithm ring --layout 2+2 --link-gbs 1.25 -J out.json"
    )
    assert list(options.sizes) == [8 * 4**power for power in range(9)]
    assert (options.iterations, options.warmup, options.calls, options.cycles) == (7, 2, 3, 2)
    assert (options.check, options.redops, options.datatypes, options.roots) == (5, ("max",), ("double",), 3)
    assert (options.blocking, options.timeout_s, options.average) == (1, 2.5, 1)
    assert (options.unalign, options.skip) == (3, 2)
    assert options.cpu_time
    assert options.timestamps
    assert options.memory
    assert options.per_iteration
    assert (options.algorithm, options.layout) == ("ring", "2+2")
    assert (options.link_gbs, options.json) == (1.25, "out.json")
    assert options.per_level


@pytest.mark.parametrize("flag", ["-J", "--output_file", "--json"])
def test_three_names_for_the_file(flag: str) -> None:
    assert parsed(f"{flag} x.json").json == "x.json"


def test_steps_add() -> None:
    assert list(parsed("-b 1K -e 4K -i 1K").sizes) == [1024, 2048, 3072, 4096]
    assert list(parsed("-b 0 -e 2 -i 1").sizes) == [0, 1, 2]


def test_all_types_operators_and_roots() -> None:
    options = parsed("-d all -o all -r all")
    assert len(options.datatypes) == 16
    assert options.redops == ("sum", "prod", "max", "min", "avg", "mulsum")
    assert options.all_roots(3) == (-1,)
    assert parsed("-r all", operation="reduce").all_roots(3) == (0, 1, 2)


def test_numpy_names_of_types_are_taken() -> None:
    assert parsed("-d float32").datatypes == ("float",)
    assert parsed("-d float16").datatypes == ("half",)
    assert parsed("-d float8_e4m3fn").datatypes == parsed("-d f8e4m3").datatypes == ("f8e4m3",)


@pytest.mark.parametrize("flags", REFUSED)
def test_flags_without_meaning_are_refused_with_the_reason(flags: tuple[str, str]) -> None:
    for arguments in (f"{flags[0]} 1", f"{flags[1]} 1", flags[0]):
        with pytest.raises(UsageError, match=f"{flags[0]}/{flags[1]} has no meaning here: ."):
            parsed(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--device gpu", "--device is 'gpu': must be cpu or cuda"),
        ("--device cuda --reproducible", "--device cuda and --reproducible"),
        ("--device cuda --per-level", "--device cuda and --per-level"),
        ("--device cuda --link-gbs 25", "--device cuda and --per-level"),
        ("-b 4K -e 1K", "--minbytes 4K is more than --maxbytes 1K"),
        ("-b seven", "--minbytes: "),
        ("-i 0", "-i/--stepbytes is 0: must be above 0"),
        ("-i 4 -f 2", "give one of them"),
        ("-f 1", "-f/--stepfactor is '1': must be a whole number of at least 2"),
        ("-b 0 -f 2", "--minbytes 0 never grows"),
        ("-n 0", "-n/--iters is '0'"),
        ("-n 2.5", "-n/--iters is '2.5'"),
        ("-w -1", "-w/--warmup_iters is '-1'"),
        ("-m 0", "-m/--agg_iters is '0'"),
        ("-c -1", "-c/--check is '-1'"),
        ("-a 4", "-a/--average is '4': must be a whole number, 0 to 3"),
        ("-z 4", "-z/--blocking is '4'"),
        ("-C yes", "-C/--report_cputime is 'yes'"),
        ("-T 0", "-T/--timeout is '0': must be a number above 0"),
        ("-T nan", "-T/--timeout is 'nan'"),
        ("-T inf", "-T/--timeout is 'inf'"),
        ("-o mean", "-o/--op is 'mean': must be one of sum, prod"),
        ("-d quad", "-d/--datatype is 'quad': must be one of int8"),
        ("-r first", "-r/--root is 'first'"),
        ("-K 1", "-K 1 is about the spread"),
        ("-I 1 -n 5 -K 5", "-K/--per_iter_skip is '5': must be a whole number, 0 to 4"),
        ("--compare --algorithm ring", "give one of them"),
        ("--within 5", "--within 5 is about the plans that --compare compares"),
        ("--compare --within 0", "--within is '0': must be a number above 0"),
        ("--compare --within 5 --rounds 3", "needs at least 5 rounds and iterations, --rounds 3 -n 20"),
        ("--compare --within 5 -n 4", "needs at least 5 rounds and iterations, --rounds 5 -n 4"),
        ("--rounds 0", "--rounds is '0'"),
        ("--nonblocking --persistent", "--nonblocking and --persistent: give one of them"),
        ("--reproducible --algorithm mpi", "MPI has no such mode"),
        ("-N 0 --json x", "-N 0 never ends"),
        ("--link-gbs -1", "--link-gbs is '-1'"),
    ],
)
def test_wrong_values_are_named(arguments: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(arguments)
    assert message in str(caught.value)


def test_ways_to_call() -> None:
    assert (parsed().mode, parsed().reproducible) == (Mode.BLOCKING, False)
    assert parsed("--nonblocking --compare").mode is Mode.NONBLOCKING
    overlapped = parsed("--overlap")
    assert (overlapped.mode, overlapped.overlap, parsed().overlap) == (Mode.NONBLOCKING, True, False)
    assert parsed("--overlap --persistent").mode is Mode.PERSISTENT
    with pytest.raises(UsageError, match="--device cuda and --overlap"):
        parsed("--device cuda --overlap")
    both = parsed("--persistent --reproducible --compare")
    assert (both.mode, both.reproducible, both.compare) == (Mode.PERSISTENT, True, True)


def test_names_of_methods() -> None:
    for name in ("Allreduce", "Bcast", "Reduce_scatter_block", "Alltoallw", "Barrier"):
        assert Mode.BLOCKING.method(name) == name
        assert Mode.NONBLOCKING.method(name) == "I" + name.lower()
        assert Mode.PERSISTENT.method(name) == name + "_init"


@pytest.mark.parametrize("operation", ["allgather", "alltoallv", "barrier"])
def test_only_arithmetic_has_a_reproducible_mode(operation: str) -> None:
    with pytest.raises(UsageError, match=f"--reproducible: {operation} does no arithmetic"):
        parsed("--reproducible", operation=operation)


def test_a_root_that_is_no_rank_is_refused() -> None:
    options = parsed("-r 4", operation="reduce")
    assert options.all_roots(5) == (4,)
    with pytest.raises(UsageError, match="-r/--root is 4: must be a rank, 0 to 3"):
        options.all_roots(4)


def test_variables_of_nccl_tests() -> None:
    assert parsed().min_bandwidth is None
    assert parsed(environ={"NCCL_TESTS_MIN_BW": "2.5"}).min_bandwidth == 2.5
    with pytest.raises(UsageError, match="NCCL_TESTS_MIN_BW is 'fast'"):
        parsed(environ={"NCCL_TESTS_MIN_BW": "fast"})
    with pytest.raises(UsageError, match="NCCL_TESTS_SPLIT"):
        parsed(environ={"NCCL_TESTS_SPLIT": "MOD 2"})


def test_where_arrays_are() -> None:
    assert (parsed().device, parsed().on_device) == ("cpu", False)
    options = parsed("--device cuda --compare --nonblocking -z 2")
    assert (options.device, options.on_device) == ("cuda", True)
    with pytest.raises(UsageError, match="--device cuda: barrier has no arrays"):
        parsed("--device cuda", operation="barrier")


def test_a_barrier_has_no_sizes() -> None:
    assert list(parsed("-b 8 -e 1M", operation="barrier").sizes) == [0]
