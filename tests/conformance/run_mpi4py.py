"""Run mpi4py's own test modules with our communicators in place of MPI.COMM_WORLD and MPI.COMM_SELF.

    mpiexec -n 4 python -m tests.conformance.run_mpi4py test_cco_buf test_p2p_obj.TestP2PObjWorld

So the class attribute COMM of every test class is ours, and what the `...Dup` classes duplicate too. Rank 0
prints what all ranks found; the status is 1 when a test failed on any rank, or a call did not run on a plan.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import sys
import time
import unittest
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4py import MPI

from tests.conformance import cupy_arrays
from tests.conformance.counting import KINDS, Census, device_words, table, words
from tests.conformance.fetch import mpi4py_tests
from tests.conformance.replace import PLAIN, replace
from tests.conformance.report import finish, left_in_shared_memory

MODULES = (
    "test_cco_buf",
    "test_cco_vec",
    "test_cco_nb_buf",
    "test_cco_nb_vec",
    "test_cco_pr_buf",
    "test_cco_pr_vec",
    "test_cco_obj",
    "test_cco_ngh_buf",
    "test_cco_ngh_obj",
    "test_p2p_buf",
    "test_p2p_obj",
)
# Which take their arrays from `arrayimpl`, and so CuPy's.
CUPY_MODULES = (*(name for name in MODULES if not name.endswith("_obj")), "test_cco_pr_ngh_buf")
TRACEBACK_END = 2500


class Outcome(unittest.TextTestResult):
    """Says at once what failed: after a failure on one rank the others may wait for it in vain."""

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802  unittest's name
        super().addError(test, err)
        self._say("error", *self.errors[-1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802  unittest's name
        super().addFailure(test, err)
        self._say("failure", *self.failures[-1])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            found = self.failures if issubclass(err[0], test.failureException) else self.errors
            self._say("in a part", *found[-1])

    @staticmethod
    def _say(kind: str, test: unittest.TestCase, text: str) -> None:
        print(f"rank {PLAIN.rank}: {kind}: {test.id()}\n{text[-TRACEBACK_END:]}", file=sys.stderr, flush=True)


def run_module(name: str, cupy: bool) -> dict[str, Any]:
    """Run a test module, or "module.Class", or "module.Class.test"; what came out on this rank."""
    module = importlib.import_module(name.split(".")[0])
    if cupy:
        cupy_arrays.skip_what_is_not_ours(module)
    suite = unittest.defaultTestLoader.loadTestsFromName(name)
    begin = time.monotonic()
    with open(os.devnull, "w") as sink:
        runner = unittest.TextTestRunner(stream=sink, verbosity=0, resultclass=Outcome, warnings="ignore")
        outcome = runner.run(suite)
    failed = [test.id() for test, _ in outcome.failures + outcome.errors]
    seconds = time.monotonic() - begin
    if PLAIN.rank == 0:
        print(f"{name}: {outcome.testsRun} tests, {len(failed)} failed here, {seconds:.1f} s", flush=True)
    return {
        "tests": outcome.testsRun,
        "failed": failed,
        "skipped": [f"{test.id()}: {reason}" for test, reason in outcome.skipped],
        "foreign": foreign_classes(module),
    }


def foreign_classes(module: ModuleType) -> list[str]:
    """Test classes whose COMM is not ours; a class without one tests no communicator."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, unittest.TestCase)
        and not isinstance(getattr(value, "COMM", None), (*KINDS, type(None)))
    ]


def run(names: Sequence[str], plain: bool, cupy: bool) -> dict[str, Any]:
    """Run the tests; all that this rank has to say about them."""
    census = Census()
    if not plain:
        census.begin()
    ours = () if plain else replace()
    modules = {name: run_module(name, cupy) for name in names}
    on_plans = census.on_plans()
    for comm in ours:
        comm.close()
    wrong = [f"failed: {test}" for module in modules.values() for test in module["failed"]]
    wrong += [f"no tests: {name}" for name, module in modules.items() if not module["tests"]]
    if not plain:
        wrong += [f"COMM is not ours: {name}" for module in modules.values() for name in module["foreign"]]
    return {
        "modules": modules,
        "calls": census.calls,
        "on_plans": on_plans,
        "inherited": census.inherited,
        "on_devices": census.on_devices,
        "over_host": census.over_host,
        "wrong": wrong + census.differences(on_plans) + left_in_shared_memory(),
    }


def main() -> None:
    """Run the modules that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run_mpi4py")
    parser.add_argument("names", nargs="*", help="module, module.Class or module.Class.test (default: all)")
    parser.add_argument("--plain", action="store_true", help="with MPI's communicators, for comparison")
    parser.add_argument("--cupy", action="store_true", help="CuPy's arrays too: on a GPU, or on the stand-in")
    parser.add_argument("--limit-s", type=float, default=600.0, help="then show the stacks and end")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.limit_s, exit=True)
    folder = mpi4py_tests()
    sys.path.insert(0, str(folder))
    (cupy_arrays.show if options.cupy else cupy_arrays.hide)()
    names = options.names or (CUPY_MODULES if options.cupy else MODULES)
    begin = time.monotonic()
    report = run(names, options.plain, options.cupy)
    modules = report["modules"].values()
    tests = sum(module["tests"] for module in modules)
    skips = PLAIN.allgather([line for module in modules for line in module["skipped"]])
    skipped = sorted({line for lines in skips for line in lines})
    if PLAIN.rank == 0:
        print(*(f"skipped {line}" for line in skipped), sep="\n", end="\n" if skipped else "")
        print(*table(report["calls"], report["on_plans"]), sep="\n")
        print(f"MPI's own: {words(report['inherited']) or 'no calls'}")
        if options.cupy:
            print(f"Arrays on a device: {device_words(report)}")
        print(f"{tests} tests on each of {PLAIN.size} ranks, {time.monotonic() - begin:.1f} s")
    result = {"tests": tests, "skipped": skipped, "library": MPI.Get_library_version()}
    sys.exit(finish(report, result, options.json))


if __name__ == "__main__":
    main()
