"""A wait gives the core away by yields, and by short sleeps where others want the cores."""

from __future__ import annotations

import os
import time

import pytest

from hpccoll import cores


class Machine:
    """A clock, and a kernel whose yields take `yield_s`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.yield_s = 1e-6
        self.done: list[str] = []

    def sched_yield(self) -> None:
        self.now += self.yield_s
        self.done.append("yield")

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 1e-3
        self.now += seconds
        self.done.append("sleep")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(cores, "_calm_since", 0.0)
    monkeypatch.setattr(cores, "_crowded_s", 0.0)
    monkeypatch.setattr(os, "sched_yield", machine.sched_yield)
    monkeypatch.setattr(time, "sleep", machine.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    return machine


def test_short_yields_stay_yields(machine: Machine) -> None:
    assert not any(cores.give_core() for _ in range(1000))
    assert machine.done == ["yield"] * 1000


def long_yield(machine: Machine) -> None:
    machine.yield_s = 3e-3
    assert cores.give_core()
    assert machine.done[-1] == "yield"
    machine.yield_s = 1e-6


def sleeping_s(machine: Machine) -> float:
    """So long sleeps are in the place of yields."""
    began = machine.now
    while cores.give_core():
        assert machine.done[-1] == "sleep"
    return machine.now - began - machine.yield_s


def test_long_yields_now_and_then_change_nothing(machine: Machine) -> None:
    for _ in range(10):
        long_yield(machine)
        machine.now += 2e-3
        assert sleeping_s(machine) == pytest.approx(0.0, abs=1e-9)


def test_long_yields_that_follow_each_other_are_replaced_by_sleeps(machine: Machine) -> None:
    long_yield(machine)
    long_yield(machine)
    assert sleeping_s(machine) == pytest.approx(cores.CROWDED_S, abs=2 * cores.NAP_S)


def test_where_cores_stay_crowded_the_sleeps_last_longer(machine: Machine) -> None:
    long_yield(machine)
    for power in range(12):
        machine.now += 50e-6
        long_yield(machine)
        expected = min(cores.CROWDED_S * 2**power, cores.MOST_CROWDED_S)
        assert sleeping_s(machine) == pytest.approx(expected, abs=2 * cores.NAP_S)
    machine.now += 1.0
    long_yield(machine)
    assert sleeping_s(machine) == pytest.approx(0.0, abs=1e-9)
