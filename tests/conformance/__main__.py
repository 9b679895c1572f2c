"""`python -m tests.conformance`: the whole matrix, a line each row; the output of each row goes to a file."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator

from tests.conformance.counting import device_words, words
from tests.conformance.fetch import FOLDER, mpi4py_tests, pylops_mpi
from tests.conformance.rows import (
    MATRIX,
    PYLOPS_RANKS,
    Finished,
    changed_outcomes,
    cupy_rows,
    no_cupy,
    run_mpi4py,
    run_pylops,
)

LOGS = FOLDER / "logs"


def log(title: str, finished: Finished) -> None:
    """Keep the output of a row."""
    LOGS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9+]+", "-", title.lower())
    (LOGS / f"{name}.txt").write_text(finished.output)


def mpi4py_rows(keyword: str) -> Iterator[tuple[str, list[str], str]]:
    """Title, what is wrong and the numbers of each row of mpi4py's tests."""
    inherited: Counter[str] = Counter()
    lack = no_cupy()
    if lack:
        print(f"No rows with CuPy's arrays: {lack}")
    for row in (*MATRIX, *(() if lack else cupy_rows())):
        title = f"mpi4py, {row}"
        if keyword in title:
            done = run_mpi4py(row)
            log(title, done)
            inherited.update(done.numbers.get("inherited", {}))
            tests, skipped = done.numbers.get("tests", 0), len(done.numbers.get("skipped", ()))
            yield title, done.wrong, f"{tests} tests, {skipped} skipped; {calls(done)}; {done.seconds:.0f} s"
    if inherited:
        print(f"MPI's own, on rank 0 of all these rows: {words(inherited)}")


def pylops_rows(keyword: str) -> Iterator[tuple[str, list[str], str]]:
    """The same of pylops-mpi's tests, with our communicators and without."""
    for ranks in PYLOPS_RANKS:
        title = f"pylops-mpi, {ranks} ranks"
        if keyword in title:
            plain, ours = run_pylops(ranks, plain=True), run_pylops(ranks, plain=False)
            log(f"{title}, plain", plain)
            log(title, ours)
            wrong, passed = plain.wrong + ours.wrong, 0
            if plain.numbers and ours.numbers:
                wrong += changed_outcomes(plain, ours)
                passed = Counter(ours.numbers["outcomes"][0].values())["passed"]
            seconds = f"{ours.seconds:.0f} s, with MPI's communicator {plain.seconds:.0f} s"
            yield title, wrong, f"{passed} tests pass; {calls(ours)}; {seconds}"


def calls(done: Finished) -> str:
    """How many of the calls that rank 0 made ran on plans."""
    text = f"{done.numbers.get('calls', 0)} calls, {done.numbers.get('on_plans', 0)} on plans"
    of_devices = done.numbers.get("on_devices", 0)
    return f"{text}; on devices {device_words(done.numbers)}" if of_devices else text


def main() -> None:
    """Run the rows; the exit status is 1 when anything is wrong in one."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument(
        "-k", dest="keyword", default="", help='only rows with this in their title: "3+1", "pylops"'
    )
    options = parser.parse_args()
    mpi4py_tests()
    pylops_mpi()
    bad = 0
    for rows in (mpi4py_rows, pylops_rows):
        for title, wrong, numbers in rows(options.keyword):
            bad += bool(wrong)
            print(f"{'WRONG' if wrong else 'ok':<6}{title}: {numbers}", flush=True)
            for line in wrong[:20]:
                print(f"      {line}", flush=True)
    print(f"Output of each row: {LOGS}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
