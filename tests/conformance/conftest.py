"""The sources that are fetched; without a network these tests skip, in continuous integration they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.fetch import UnavailableError, mpi4py_tests, pylops_mpi, required
from tests.conformance.rows import no_cupy


def fetched(fetch: Callable[[], Any]) -> Any:
    try:
        return fetch()
    except UnavailableError as error:
        if required():
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def mpi4py_sources() -> Any:
    return fetched(mpi4py_tests)


@pytest.fixture(scope="session")
def cupy_on_devices(mpi4py_sources: Any) -> None:
    """CuPy's source may have to be fetched, for what the stand-in needs of it."""
    lack = no_cupy()
    if lack and required() and "cannot be fetched" in lack:
        pytest.fail(lack)
    if lack:
        pytest.skip(f"no CuPy on devices or stand-ins: {lack}")


@pytest.fixture(scope="session")
def pylops_mpi_sources() -> Any:
    return fetched(pylops_mpi)
