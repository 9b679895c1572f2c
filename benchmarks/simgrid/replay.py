"""The programs of all ranks as SimGrid's actors.  Run by the Python that has SimGrid, which need not be ours:

    /usr/bin/python3 replay.py FILE

FILE is what `case.document` writes; the time until the last rank is done is printed, in seconds.

Each rank is an actor on a host of its own (a core): it starts messages when what they wait for is done,
combines what has come, and waits for any of its messages, as one thread of a real rank does.  Its messages
leave a quarter of a latency apart.  Those from one rank to another go one after the other, as over a
connection; each has come a latency after its last byte was sent, and by then the next one is on its way.
Calls of a node's ranks are made by an actor of the node: once all have come, the hand-overs take their
latency, and the bytes go over the node's memory.
"""

import json
import sys

from simgrid import Actor, Comm, Engine, Host, LinkInRoute, Mailbox, NetZone, this_actor

FREE = 1e18  # bytes a second: what tells that a call is complete costs nothing here


def platform(case):
    """A host for every rank and node, and the links between them."""
    zone = NetZone.create_full_zone("machine")
    hosts = {}

    def link(name, rate, latency_s=0.0):
        return LinkInRoute(zone.create_link(name, rate).set_latency(latency_s).seal())

    free = link("free", FREE)
    for rank, one in enumerate(case["ranks"]):
        hosts["rank", rank] = zone.create_host(f"rank{rank}", one["combines_per_s"]).seal()
    nodes = range(len(case["nodes"]))
    for node in nodes:
        hosts["node", node] = zone.create_host(f"node{node}", 1.0).seal()
        hosts["memory", node] = zone.create_host(f"memory{node}", 1.0).seal()
    out = [link(f"out{node}", case["nodes"][node]["network"]) for node in nodes]
    into = [link(f"in{node}", case["nodes"][node]["network"]) for node in nodes]
    messages = [link(f"messages{node}", case["messages"]) for node in nodes]
    leaves = [
        (link(f"up{number}", rate), link(f"down{number}", rate)) for number, rate in enumerate(case["leaves"])
    ]

    def join(one, other, links, both=False):
        zone.add_route(hosts[one].netpoint, hosts[other].netpoint, None, None, links, both)

    # A message of nothing to these hosts takes a latency.
    for name in ("network", "message"):
        hosts["later", name] = zone.create_host(f"{name} latency", 1.0).seal()
    later = {name: link(f"{name}_later", FREE, case[f"{name}_latency_s"]) for name in ("network", "message")}
    for rank, one in enumerate(case["ranks"]):
        join(("rank", rank), ("node", one["node"]), [free], True)
        for name, links in later.items():
            join(("rank", rank), ("later", name), [links])
        for peer, other in enumerate(case["ranks"]):
            if rank == peer:
                continue
            if one["node"] == other["node"]:
                join(("rank", rank), ("rank", peer), [messages[one["node"]]])
                continue
            mine, theirs = (case["nodes"][each["node"]]["leaf"] for each in (one, other))
            between = [leaves[mine][0], leaves[theirs][1]] if mine != theirs else []
            join(("rank", rank), ("rank", peer), [out[one["node"]], *between, into[other["node"]]])
    for node in nodes:
        join(("node", node), ("memory", node), [link(f"memory_of_{node}", case["memory"])], True)
    zone.seal()
    return hosts


def call_maker(calls, node):
    """Makes the calls of one group of a node, one after the other."""
    for call in calls:
        for _ in call["members"]:
            Mailbox.by_name(call["name"]).get()
        this_actor.sleep_for(call["latency_s"])
        if call["bytes"]:
            Comm.sendto(Host.by_name(f"node{node}"), Host.by_name(f"memory{node}"), round(call["bytes"]))
        done = [Mailbox.by_name(f"{call['name']}/{member}").put_async(0, 1) for member in call["members"]]
        Comm.wait_all(done)


class Rank:
    """One rank's program on its way."""

    def __init__(self, me, case):
        one = case["ranks"][me]
        self.me, self.operations = me, one["operations"]
        self.node_of = [rank["node"] for rank in case["ranks"]]
        self.waits = [len(each["after"]) + (each["previous"] >= 0) for each in self.operations]
        self.by_end = [[] for _ in self.operations]
        self.by_start = [[] for _ in self.operations]
        for number, each in enumerate(self.operations):
            for earlier in each["after"]:
                self.by_end[earlier].append(number)
            if each["previous"] >= 0:
                self.by_start[each["previous"]].append(number)
        self.ready = [number for number, count in enumerate(self.waits) if not count]
        self.going, self.then, self.kept = [], [], []  # messages, and what to do when one is complete
        self.channels = {}  # by direction and peer: those that wait for the one that is going
        self.latency_s = {name: case[f"{name}_latency_s"] for name in ("network", "message")}
        self.may_send = 0.0  # from when on

    def release(self, followers):
        for number in followers:
            self.waits[number] -= 1
            if not self.waits[number]:
                self.ready.append(number)

    def watch(self, comm, then):
        self.going.append(comm)
        self.then.append(then)

    def run(self):
        while self.ready or self.going:
            while self.ready:
                # Messages first: what a rank combines meanwhile does not hold them up.
                number = min(self.ready, key=lambda one: (self.operations[one]["what"] == "combine", one))
                self.ready.remove(number)
                self.begin(number, self.operations[number])
                while self.going and (index := Comm.test_any(self.going)) >= 0:
                    self.complete(index)
            if self.going:
                self.complete(Comm.wait_any(self.going))

    def complete(self, index):
        self.going.pop(index)
        self.then.pop(index)()

    def begin(self, number, one):
        self.release(self.by_start[number])
        if one["what"] in ("send", "receive"):
            queue = self.channels.setdefault((one["what"], one["peer"], one["step"]), [])
            queue.append(number)
            if len(queue) == 1:
                self.transfer(queue)
        elif one["what"] == "call":
            Mailbox.by_name(one["name"]).put_init(0, 1).detach()
            comm, data = Mailbox.by_name(f"{one['name']}/{self.me}").get_async()
            self.kept.append(data)
            self.watch(comm, lambda: self.release(self.by_end[number]))
        else:
            if one["what"] == "combine":
                this_actor.execute(one["bytes"])
            self.release(self.by_end[number])

    def transfer(self, queue):
        number = queue[0]
        one = self.operations[number]
        peer = one["peer"]
        name = "message" if self.node_of[peer] == self.node_of[self.me] else "network"
        if one["what"] == "send":
            if self.may_send > Engine.clock:
                this_actor.sleep_for(self.may_send - Engine.clock)
            self.may_send = Engine.clock + self.latency_s[name] / 4
            comm = Mailbox.by_name(f"{self.me}>{peer}/{one['step']}").put_async(0, max(1, one["bytes"]))
        else:
            comm, data = Mailbox.by_name(f"{peer}>{self.me}/{one['step']}").get_async()
            self.kept.append(data)

        def moved():
            queue.pop(0)
            if queue:
                self.transfer(queue)
            if one["what"] == "send":
                self.release(self.by_end[number])
                return
            latency = Comm.sendto_async(this_actor.get_host(), Host.by_name(f"{name} latency"), 1)
            self.watch(latency, lambda: self.release(self.by_end[number]))

        self.watch(comm, moved)


def rank_actor(me, case, ends):
    """What a rank does: it begins when all have agreed on the call."""
    this_actor.sleep_for(case["ranks"][me]["start_s"])
    Rank(me, case).run()
    ends[me] = Engine.clock


def main():
    """Print the time of the case in the file."""
    engine = Engine([sys.argv[0], *(f"--cfg={one}" for one in sys.argv[2:]), "--log=root.thresh:error"])
    with open(sys.argv[1], encoding="utf-8") as file:
        case = json.load(file)
    hosts = platform(case)
    ends = {}
    for group in case["groups"]:
        Actor.create("calls", hosts["node", group["node"]], call_maker, group["calls"], group["node"])
    for rank in range(len(case["ranks"])):
        Actor.create(f"rank{rank}", hosts["rank", rank], rank_actor, rank, case, ends)
    engine.run()
    if len(ends) < len(case["ranks"]):
        sys.exit("some ranks are not done: the programs wait for one another")
    print(max(ends.values()))


if __name__ == "__main__":
    main()
