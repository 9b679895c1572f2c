"""The same as JSON, version 3 of nccl-tests' layout, with keys of our own beside theirs.

Of our own: `hpccoll_version`, `mpi_library`, `mpi4py_version`, `layout`, `device`, `stand_in`, `notes`,
`mode`, `average`, `choices`, in each result `algorithm`, `plan`, `selected`, `reproducible`, `price`,
`per_level` and (with several contenders) `*_rounds_us`, and with --overlap `overlap_percent` in each half.
`okay` and flags are true or false, not words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpccoll.cli.bench.choice import Judged, judge
from hpccoll.cli.bench.facts import RunFacts
from hpccoll.cli.bench.options import AVERAGES, Options
from hpccoll.cli.bench.results import Half, Outcome, Row

VERSION = 3
# Settings that change what is measured.  Not the whole environment, in which there may be secrets.
_ENVIRONMENT = ("HPCCOLL_", "NCCL_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "OMPI_MCA_", "UCX_", "FI_", "OMP_")


def document(
    outcome: Outcome,
    options: Options,
    facts: RunFacts,
    *,
    args: Sequence[str],
    environ: Mapping[str, str],
    times: tuple[str, str],
) -> dict[str, Any]:
    """What the JSON file says; `times` are start and end."""
    wanted = options.min_bandwidth
    return {
        "version": VERSION,
        "start_time": times[0],
        "args": list(args),
        "env": sorted(f"{name}={value}" for name, value in environ.items() if name.startswith(_ENVIRONMENT)),
        "nccl_version": facts.nccl_version,
        "hpccoll_version": facts.version,
        "mpi_library": facts.mpi_library,
        "mpi4py_version": facts.mpi4py,
        "layout": facts.layout,
        "device": options.device,
        "stand_in": facts.is_stand_in,
        "notes": list(facts.notes),
        "mode": options.mode.value,
        "average": f"{options.average}: {AVERAGES[options.average]}",
        "config": _config(options, facts),
        "results": [_result(row, options) for row in outcome.rows],
        "choices": [_choice(one) for one in judge(outcome.rows)] if options.compare else None,
        "out_of_bounds": {"count": outcome.out_of_bounds, "okay": outcome.out_of_bounds == 0},
        "average_bus_bandwidth": {
            "bandwidth": outcome.busbw(),
            "okay": "unchecked" if wanted is None else outcome.busbw() >= 0.9 * wanted,
        },
        "errors": outcome.errors,
        "end_time": times[1],
    }


def _choice(one: Judged) -> dict[str, Any]:
    """The time of the choice over those of others, with its interval."""
    case = one.case
    return {
        "size": case.nbytes,
        "type": case.datatype,
        "redop": case.redop or "none",
        "root": case.root,
        "half": one.half,
        "plan": one.plan,
        "over_best": asdict(one.best),
        "over_flat": None if one.flat is None else asdict(one.flat),
    }


def _config(options: Options, facts: RunFacts) -> dict[str, Any]:
    by_factor = {"step_factor": options.step_factor}
    return {
        "nthreads": 1,
        "ngpus": int(options.on_device),
        "minimum_bytes": options.min_bytes,
        "maximum_bytes": facts.max_bytes,
        **(by_factor if options.step_factor else {"step_bytes": options.step_bytes}),
        "warmup_iters": options.warmup,
        "iterations": options.iterations,
        "aggregated_iterations": options.calls,
        "validation": options.check,
        "graph": 0,
        "blocking_collectives": options.blocking in (1, 3),
        "per_iter_timing": options.per_iteration,
        "per_iter_skip": options.skip,
        "parallel_init": False,
        "devices": [
            {
                "rank": one.rank,
                "group": 0,
                "pid": one.pid,
                "hostname": one.host,
                "device": one.device,
                "device_hex": one.address or None,
                "device_info": one.processor,
                "node": one.node,
                "local_rank": one.local_rank,
            }
            for one in facts.ranks
        ],
    }


def _result(row: Row, options: Options) -> dict[str, Any]:
    case = row.case
    result: dict[str, Any] = {
        "size": case.nbytes,
        "count": case.count,
        "type": case.datatype,
        "redop": case.redop or "none",
        "root": case.root,
    }
    for name, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        result[name] = None if half is None else _half(half, options)
        if half is not None and half.spread is not None:
            result[f"{name}_per_iter"] = _spread(half)
        if half is not None and half.rounds_us:
            result[f"{name}_rounds_us"] = list(half.rounds_us)
    return {
        **result,
        "actual_iterations": options.iterations,
        "experiment_name": case.operation.name,
        "algorithm": row.algorithm,
        "plan": row.plan,
        "selected": row.selected,
        "reproducible": row.reproducible,
        "price": None if row.price is None else asdict(row.price),
        "per_level": _per_level(row, options.link_gbs),
    }


def _half(half: Half, options: Options) -> dict[str, Any]:
    time = {"cpu_time": half.cpu_us} if options.cpu_time else {"time": half.time_us}
    overlap = {"overlap_percent": half.overlap_percent} if options.overlap else {}
    return {**time, "alg_bw": half.algbw, "bus_bw": half.busbw, "nwrong": half.wrong, **overlap}


def _spread(half: Half) -> dict[str, Any]:
    if half.spread is None:
        return {}
    values = asdict(half.spread)
    times_us = values.pop("times_us")
    return {
        "skipped_iterations": values.pop("skipped"),
        **values,
        "cv_pct": half.spread.cv_pct,
        "times_us": list(times_us),
    }


def _per_level(row: Row, link_gbs: float | None) -> dict[str, Any] | None:
    """Bytes by the plan's cost model, bandwidth by the times measured, utilisation of `link_gbs` if given."""
    if row.crossing is None:
        return None
    speeds = {
        name: row.crossing.network_gbs(half)
        for name, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place))
    }
    return {
        "node": {"bytes": row.crossing.node_bytes},
        "network": {
            "bytes": row.crossing.network_bytes,
            "gbs": speeds,
            "link_gbs": link_gbs,
            "utilisation": {
                name: None if gbs is None or link_gbs is None else gbs / link_gbs
                for name, gbs in speeds.items()
            },
        },
    }
