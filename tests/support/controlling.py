"""What the controller of a test does with a pool on several hosts, and functions that its workers call."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from suite.processes import hosts
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.pool import Pool
from suite.properties.case import Case
from suite.room.devices import Devices

MUTANT = "tests.mutants.missing_initial_broadcast:Mutant"
GARBAGE = (
    b"\x00" * 100 + b"\n",
    b"x" * 100_000,
    b'{"challenge": "a", "proof": "b"}\n',
    b'{"challenge": "\\ud800", "proof": "b"}\n',
    b"[" * 1000 + b"\n",
    b"[]\n",
    b"",
)


def start_on_all(pool: Pool, devices: Devices) -> None:
    try:
        pool.group("all", devices.hosts).wait_connected()
        print("all are up")
    except WorkerFailure as failure:
        print(failure)


def check_and_lose(pool: Pool, devices: Devices) -> None:
    """Check gradients over all hosts, let the second host's rank die and hang, then wait until that host is lost."""
    from suite.checks.bench import Bench  # loads hypothesis, which workers that import this module can do without

    bench = Bench(pool, devices)
    k = devices.hosts
    print(f"ddp on {k} hosts: {bench.judge('ddp', 'gradient', Case(k, (k + 1,))).finding or 'right'}", flush=True)
    print(f"a rank starts differently: {bench.judge(MUTANT, 'start', Case(k, (k + 1,))).finding}", flush=True)
    print(f"garbage: {talk_nonsense(pool)}", flush=True)
    print(f"dies: {failure_of(bench.group(k), 'die_on_rank_1')}", flush=True)
    print(f"hangs: {failure_of(bench.group(2), 'hang_on_rank_1')}", flush=True)
    group = pool.group("lost", 2)
    group.wait_connected()
    group.post("call", function="tests.support.controlling:hang", arguments={})
    print("both ranks hang", flush=True)
    try:
        group.collect(dict, "call", 60.0)
    except WorkerFailure as failure:
        print(f"host: {failure.cause}", flush=True)
    alone = bench.group(1).request(dict, "call", function="tests.support.controlling:rank", arguments={})
    print(f"alone: {alone}", flush=True)


def lose_cable(pool: Pool, devices: Devices) -> None:
    """Ask two hosts something after the second one's cable was pulled out, and then the first one alone."""
    hosts.KEEPALIVE["TCP_USER_TIMEOUT"] //= 6  # 5 s; connections are made after this
    group = pool.group("both", devices.hosts)
    group.wait_connected()
    print("pull the cable", flush=True)
    while not Path("pulled").exists():
        time.sleep(0.05)
    try:
        group.request(dict, "call", 90.0, function="tests.support.controlling:rank", arguments={})
    except WorkerFailure as failure:
        print(f"first: {failure.cause}", flush=True)
    try:
        pool.group("both", devices.hosts).wait_connected()
    except WorkerFailure as failure:
        print(f"later: {failure.cause}", flush=True)
    alone = pool.group("one", 1).request(dict, "call", function="tests.support.controlling:rank", arguments={})
    print(f"alone: {alone}", flush=True)


def talk_nonsense(pool: Pool) -> str:
    """Connect to the controller's port and send what no worker sends; return why it was turned away."""
    elsewhere = pool._other_hosts
    assert elsewhere is not None
    host, _, port = elsewhere.listener.address.removeprefix("tcp://").rpartition(":")
    talking = [socket.create_connection((host, int(port)), 5) for _ in GARBAGE]
    for connection, text in zip(talking, GARBAGE, strict=True):
        connection.sendall(text)
    talking[-1].close()
    deadline = time.monotonic() + 2
    while pool.wait(deadline):
        pass
    assert not elsewhere.listener.handshakes, "none is left"
    return f"turned away: {elsewhere.listener.refused}"


def failure_of(group: Group, function: str) -> str:
    """Return how a group fails when it calls a function of this module."""
    group.request(dict, "call", function="tests.support.controlling:rank", arguments={})
    try:
        group.request(dict, "call", 3.0, function=f"tests.support.controlling:{function}", arguments={})
    except WorkerFailure as failure:
        return "\n".join([failure.cause, *failure.details])
    return "it did not fail"


def rank() -> int:
    return int(os.environ["RANK"])


def die_on_rank_1() -> None:
    if rank() == 1:
        print("written on the other host before the end", file=sys.stderr, flush=True)
        os._exit(7)


def hang_on_rank_1() -> None:
    if rank() == 1:
        time.sleep(600)


def hang() -> None:
    time.sleep(600)
