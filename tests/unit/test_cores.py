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
    monkeypatch.setattr(cores, "_crowded_until", 0.0)
    monkeypatch.setattr(os, "sched_yield", machine.sched_yield)
    monkeypatch.setattr(time, "sleep", machine.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    return machine


def test_short_yields_stay_yields(machine: Machine) -> None:
    assert not any(cores.give_core() for _ in range(1000))
    assert machine.done == ["yield"] * 1000


def test_a_long_yield_is_followed_by_sleeps_for_a_while(machine: Machine) -> None:
    machine.yield_s = 3e-3
    assert cores.give_core()
    crowded_until = machine.now + cores.CROWDED_S
    while machine.now < crowded_until:
        assert cores.give_core()
    assert set(machine.done[1:]) == {"sleep"}
    machine.yield_s = 1e-6
    assert not cores.give_core()
    assert machine.done[-1] == "yield"
