"""The tree of errors: what catches what, and the context that each carries."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from hpccoll import errors
from hpccoll.errors import (
    AbortedError,
    CollectiveTimeoutError,
    HpccollError,
    IntegrityError,
    MismatchError,
    NotFiniteError,
    PeerLostError,
    ResourceError,
    TopologyError,
    UsageError,
    UsageTypeError,
)

BASES = {
    HpccollError: (Exception,),
    UsageError: (HpccollError, ValueError),
    UsageTypeError: (UsageError, TypeError, ValueError),
    MismatchError: (HpccollError,),
    NotFiniteError: (HpccollError, FloatingPointError, ArithmeticError),
    PeerLostError: (HpccollError,),
    CollectiveTimeoutError: (HpccollError, TimeoutError, OSError),
    IntegrityError: (HpccollError,),
    AbortedError: (HpccollError,),
    TopologyError: (HpccollError,),
    ResourceError: (HpccollError, OSError),
}
BUILT_IN = (ValueError, TypeError, TimeoutError, OSError, FloatingPointError, ArithmeticError)
CONTEXT = {"collective": "allreduce", "sequence": 7, "group": "LEADERS", "rank": 3, "suspects": (1, 2)}
every_error = pytest.mark.parametrize("error", BASES, ids=lambda error: error.__name__)


def test_the_tree_is_complete() -> None:
    public = {
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert public == set(BASES)


@every_error
def test_what_catches_it(error: type[HpccollError]) -> None:
    caught_by = {base for base in (*BASES, *BUILT_IN) if issubclass(error, base)}
    assert caught_by - {error, HpccollError} == set(BASES[error]) - {Exception, HpccollError}
    assert issubclass(error, HpccollError)


@every_error
def test_it_carries_its_context(error: type[HpccollError]) -> None:
    raised = error("what happened", **CONTEXT)  # type: ignore[arg-type]
    assert str(raised) == raised.message == "what happened"
    assert {name: getattr(raised, name) for name in CONTEXT} == CONTEXT


@every_error
def test_context_that_is_not_known_is_empty(error: type[HpccollError]) -> None:
    raised = error("what happened")
    assert (raised.collective, raised.sequence, raised.group, raised.rank) == (None, None, None, None)
    assert raised.suspects == ()


def test_suspects_are_kept_as_a_tuple() -> None:
    suspects = [4, 2]
    raised = PeerLostError("gone", suspects=suspects)
    suspects.clear()
    assert raised.suspects == (4, 2)


def test_context_goes_by_name_only() -> None:
    with pytest.raises(TypeError):
        UsageError("what happened", "allreduce")  # type: ignore[misc]


@every_error
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_it_travels_to_another_process_whole(error: type[HpccollError], again: object) -> None:
    raised = again(error("what happened", **CONTEXT))  # type: ignore[operator, arg-type]
    assert type(raised) is error
    assert str(raised) == "what happened"
    assert {name: getattr(raised, name) for name in CONTEXT} == CONTEXT
    assert raised.args == ("what happened",)


@every_error
def test_the_drawing_in_the_docstring_has_it(error: type[HpccollError]) -> None:
    assert errors.__doc__ is not None
    assert error.__name__ in errors.__doc__
    assert error.__doc__
