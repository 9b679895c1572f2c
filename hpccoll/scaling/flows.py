"""A plan on a machine whose links are shared: when each group of each step begins and ends.

Events are the beginnings and ends of the groups' parts of steps ("tasks").  A task begins when its members
are done with the steps that hand elements over to it, and with the step before of the same level.  First it
takes the time of its hops, which no other delays; then its bytes move over all of its links in step with one
another, as the rounds of a collective do, at the rate that max-min fairness gives it (D. Bertsekas,
R. Gallager, "Data Networks", section 6.5.2): no task can be faster without making a slower one slower still.
What tasks ask of links is the cost model's (`plans.demand`).  With links that nobody else wants, all nodes
alike and nobody late, the time is the plan's price.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.plans.cost import agreement_s, carries_payload
from hpccoll.plans.demand import MEMORY as BY_MEMORY
from hpccoll.plans.demand import Demand, crossing, demands
from hpccoll.plans.links import Links
from hpccoll.plans.steps import Plan
from hpccoll.scaling.network import (
    DOWN,
    IN,
    INSIDE,
    MEMORY,
    MESSAGES,
    OUT,
    SWITCH,
    UP,
    Contention,
    Floats,
    Network,
)

Numbers = NDArray[np.int64]
_SAME = 1e-9  # events so near to each other, over the time so far, are one


@dataclass(frozen=True)
class Run:
    """A plan on a machine.

    Attributes:
        time_s: until the last rank is done, from when the first one calls.
        used: by class of links, the part of the time that the busiest of them was busy.

    """

    time_s: float
    used: dict[str, float]


def simulate_plan(plan: Plan, itemsize: int, links: Links, contention: Contention | None = None) -> Run:
    """When a plan is done; `itemsize`: bytes of its elements."""
    contention = contention or Contention()
    network = Network(plan.layout, links, contention)
    tasks = _Tasks(plan, itemsize, links, network)
    late = np.zeros(plan.layout.size)
    for rank, late_us in contention.late_us.items():
        if rank < plan.layout.size:
            late[rank] = late_us * 1e-6
    if links.fabric is None:  # hosts agree on a call first, so that all wait for the last
        late[:] = late.max(initial=0.0) + (0.0 if carries_payload(plan) else agreement_s(plan, links))
    time_s = max(tasks.run(late), float(late.max(initial=0.0)))
    busy = np.bincount(tasks.links, tasks.seconds, minlength=len(network.capacity))
    used = {name: float(busy[part].max(initial=0.0)) / time_s for name, part in network.classes() if time_s}
    return Run(time_s, {name: part for name, part in used.items() if part > 0})


class _Tasks:
    """The tasks of a plan: `fixed_s` of each, and as one list for all, on which link how many seconds."""

    def __init__(self, plan: Plan, itemsize: int, links: Links, network: Network) -> None:
        self._plan, self._net = plan, network
        self._entries: list[tuple[Numbers, Numbers, Floats]] = []  # task, link, bytes
        self._fixed: list[float] = []
        self._least: list[float] = []
        self._chains: list[tuple[int, int]] = []  # a task, and the phase that follows
        self._known: dict[tuple[int, int], tuple[tuple[int, ...], Demand, Numbers, Floats]] = {}
        self.members: list[tuple[int, ...]] = []
        crosses: list[bool] = []
        owners: list[tuple[Numbers, Numbers]] = []  # of each step: by rank, its first and its last task
        for step in plan.steps:
            first, last = np.full(plan.layout.size, -1), np.full(plan.layout.size, -1)
            for members, demand in zip(step.groups, demands(plan, step, itemsize, links), strict=True):
                ranks = list(members)
                first[ranks] = len(self._fixed)
                for phase, one in enumerate((demand, *demand.then)):
                    if phase:
                        self._chains.append((len(self._fixed) - 1, len(self._fixed)))
                    self._add(members, one, float(network.slow[ranks].min()), links)
                    crosses.append(demand.crosses)
                last[ranks] = len(self._fixed) - 1
            owners.append((first, last))
        self.fixed_s, self.least_s = np.array(self._fixed), np.array(self._least)
        empty = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))
        self.tasks, self.links, nbytes = map(np.concatenate, zip(empty, *self._entries, strict=True))
        self.seconds = nbytes / network.capacity[self.links]
        self._wait_for(owners, np.array(crosses, bool))

    @staticmethod
    def _least_s(demand: Demand, slowest: float, links: Links) -> float:
        """At least what the slowest member takes for its part; a GPU's own links are slower themselves."""
        by_memory = demand.by == BY_MEMORY
        if slowest == 1 or (by_memory and not any(demand.inside)):
            return demand.least_s
        rate = links.memory_gbs if by_memory else links.message_gbs
        return max(demand.least_s, max(demand.inside) / (rate * 1e9)) / slowest

    # --- what each asks of which link --------------------------------------------------------------

    def _add(self, members: tuple[int, ...], demand: Demand, slowest: float, links: Links) -> None:
        task = len(self._fixed)
        self._fixed.append(demand.fixed_s + demand.combining_s / slowest)
        self._least.append(self._least_s(demand, slowest, links))
        self.members.append(members)
        # Chunks ask for the same again: the objects are the same, too.
        key = (id(members), id(demand))
        if key not in self._known:
            self._known[key] = (members, demand, *self._asks(members, demand))
        _, _, on, nbytes = self._known[key]
        if len(on):
            self._entries.append((np.full(len(on), task), on, nbytes))

    def _asks(self, members: tuple[int, ...], demand: Demand) -> tuple[Numbers, Floats]:
        """Links, and bytes on each."""
        net, everyone = self._net, np.array(members)
        at = net.node_of[everyone]
        nodes, first_seen = np.unique(at, return_index=True)
        nodes = nodes[np.argsort(first_seen)]  # as the group numbers them
        found: list[tuple[Numbers, Floats]] = []
        if any(demand.sent):
            cards = np.unique(at * net.cards + net.card_of[everyone])
            number = np.zeros(len(net.leaf_of), int)
            number[nodes] = np.arange(len(nodes))
            used = np.bincount(cards // net.cards, minlength=len(number))
            for name, of_node in ((OUT, demand.sent), (IN, demand.arriving)):
                node = cards // net.cards
                found.append((net.first(name) + cards, np.array(of_node)[number[node]] / used[node]))
            if net.has_leaves and demand.pattern is not None:
                found += self._on_leaves(everyone, nodes, number[at], demand)
        if any(demand.inside):
            first = net.first(MEMORY if demand.by == BY_MEMORY else MESSAGES)
            found.append((first + nodes, np.array(demand.inside)))
        for name, nbytes in ((INSIDE, demand.of_gpu), (SWITCH, demand.switched)):
            if nbytes:
                found.append((net.first(name) + everyone, np.full(len(members), nbytes)))
        if not found:
            return np.zeros(0, int), np.zeros(0)
        return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])

    def _on_leaves(
        self, members: Numbers, nodes: Numbers, node_of: Numbers, demand: Demand
    ) -> list[tuple[Numbers, Floats]]:
        net = self._net
        assert demand.pattern is not None
        cards = np.unique(net.card_of[members]) if net.leaf_cards > 1 else np.zeros(1, int)
        places = net.leaf_of[nodes].tolist()
        found = []
        for name, of_node, into in ((UP, demand.sent, False), (DOWN, demand.arriving, True)):
            for leaf, nbytes in crossing(
                demand.pattern, of_node, places, node_of.tolist(), into=into
            ).items():
                first = net.first(name) + leaf * net.leaf_cards
                found.append((first + cards, np.full(len(cards), nbytes / len(cards))))
        return found

    # --- who waits for whom ------------------------------------------------------------------------

    def _wait_for(self, owners: Sequence[tuple[Numbers, Numbers]], crosses: NDArray[np.bool_]) -> None:
        """A task waits for those of its members in the steps before it, and for the last of its level."""
        before = {level: np.full(self._plan.layout.size, -1) for level in (False, True)}
        count = len(self.fixed_s)
        # An earlier task and a later one, as one number.
        pairs = [np.array([one * count + other for one, other in self._chains], int)]
        for step, (first, last) in zip(self._plan.steps, owners, strict=True):
            mine = first >= 0
            level = np.zeros(len(first), bool)
            level[mine] = crosses[first[mine]]
            latest = np.where(level, before[True], before[False])
            for earlier in (*(owners[index][1] for index in step.after), latest):
                both = mine & (earlier >= 0)
                pairs.append(np.unique(earlier[both] * count + first[both]))
            for one, of_level in before.items():
                chosen = mine & (level == one)
                of_level[chosen] = last[chosen]
        earlier_ones, later_ones = np.divmod(np.unique(np.concatenate(pairs)), max(1, count))
        self._waits = np.bincount(later_ones, minlength=count)
        self._followers = np.split(later_ones, np.cumsum(np.bincount(earlier_ones, minlength=count))[:-1])

    # --- the run -----------------------------------------------------------------------------------

    def run(self, ready: Floats) -> float:
        """The end of the last task; `ready`: when each rank makes the call."""
        count = len(self.fixed_s)
        longest = self.least_s.copy()
        np.maximum.at(longest, self.tasks, self.seconds)
        # Of the time that a task takes alone, the part that each of its links is busy.
        shares = self.seconds / np.where(longest > 0, longest, 1)[self.tasks]
        waits = self._waits.copy()
        moving = np.zeros(count, bool)
        left = longest.copy()
        speed = np.zeros(count)
        now = 0.0
        hopping: list[tuple[float, int]] = []

        def begin(task: int) -> None:
            start = max(now, max(ready[rank] for rank in self.members[task]))
            heapq.heappush(hopping, (start + self.fixed_s[task], task))

        for first in np.flatnonzero(waits == 0).tolist():
            begin(first)
        while hopping or moving.any():
            active = np.flatnonzero(moving)
            ends = left[active] / speed[active]
            soon = min(hopping[0][0] if hopping else np.inf, now + ends.min(initial=np.inf))
            left[active] -= speed[active] * (soon - now)
            slack = _SAME * soon
            done: list[int] = active[now + ends <= soon + slack].tolist()
            now = float(soon)
            while hopping and hopping[0][0] <= now + slack:
                _, task = heapq.heappop(hopping)
                if longest[task] > 0:
                    moving[task] = True
                else:
                    done.append(task)
            moving[done] = False
            for task in done:
                for follower in self._followers[task].tolist():
                    waits[follower] -= 1
                    if not waits[follower]:
                        begin(follower)
            speed = self._fair(moving, shares)
        return now

    def _fair(self, moving: NDArray[np.bool_], shares: Floats) -> Floats:
        """The speed of each moving task, 1 being that of a task alone."""
        speed = np.zeros(len(moving))
        rising = moving.copy()
        links = len(self._net.capacity)
        room = np.ones(links)
        mine = moving[self.tasks]
        while rising.any():
            on, part, of = self.links[mine], shares[mine], self.tasks[mine]
            load = np.bincount(on, part, minlength=links)
            level = np.full(links, np.inf)
            np.divide(room, load, out=level, where=load > 0)
            lowest = min(1.0, float(level.min(initial=np.inf)))
            fixed = rising & False
            if lowest < 1.0:
                fixed[of[level[on] <= lowest * (1 + _SAME)]] = True
            else:
                fixed = rising.copy()
            speed[fixed] = lowest
            taken = fixed[of]
            room -= np.bincount(on[taken], part[taken] * lowest, minlength=links)
            np.maximum(room, 0, out=room)
            rising &= ~fixed
            mine &= rising[self.tasks]
        return speed
