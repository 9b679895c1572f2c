"""What collectives must give, said in NumPy over the arrays of all ranks; and one call checked against it.

Every rank makes the arrays of all ranks itself, so the oracle needs no communication.  The data are whole
numbers small enough that every order of the operations has the same answer: equality is exact.

    elements     number types, operators, data, what they come to
    jobs         calls whose blocks are all of one length
    ragged       calls with counts and displacements
    performing   a call made, in one of three forms, and compared
"""

from tests.support.oracle.elements import (
    ARITHMETIC,
    BFLOAT16,
    BITWISE,
    BOOL,
    COMPLEX,
    FLOAT16,
    GUARD,
    INT64,
    INTEGERS,
    LOGICAL,
    MARGIN,
    NUMBERS,
    OPERATORS,
    ORDER,
    REALS,
    UFUNCS,
    Array,
    combined,
    data,
    equal,
    operator,
    operators,
    untouched,
)
from tests.support.oracle.jobs import BLOCKED, COLLECTIVES, REDUCTIONS, ROOTED, Job
from tests.support.oracle.performing import (
    Attempt,
    Place,
    Placed,
    every_place,
    every_root,
    in_line,
    perform,
    perform_all,
)
from tests.support.oracle.ragged import ORDERS, RAGGED, Ragged

__all__ = [
    "ARITHMETIC",
    "BFLOAT16",
    "BITWISE",
    "BLOCKED",
    "BOOL",
    "COLLECTIVES",
    "COMPLEX",
    "FLOAT16",
    "GUARD",
    "INT64",
    "INTEGERS",
    "LOGICAL",
    "MARGIN",
    "NUMBERS",
    "OPERATORS",
    "ORDER",
    "ORDERS",
    "RAGGED",
    "REALS",
    "REDUCTIONS",
    "ROOTED",
    "UFUNCS",
    "Array",
    "Attempt",
    "Job",
    "Place",
    "Placed",
    "Ragged",
    "combined",
    "data",
    "equal",
    "every_place",
    "every_root",
    "in_line",
    "operator",
    "operators",
    "perform",
    "perform_all",
    "untouched",
]
