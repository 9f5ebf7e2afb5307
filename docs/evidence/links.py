"""A link that was limited, and one that was delayed: does the first show in beta and the second in alpha?

    sudo python -m docs.evidence.links

Two network namespaces stand for two hosts, joined by a virtual cable; a gloo rank in each, all-reduces of 4 KiB to
4 MiB in an order that is drawn, six rounds, for the cable as it is, for `tc tbf` at 1 Gbit/s on both ends, and for `tc
netem` with 500 us on both ends. Needs root, iproute2 and two cores; the namespaces are removed in the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

from docs.evidence.log import ROOT
from suite.communication.alpha_beta import Fit, busbw_gb_per_s, fit
from suite.room import quiet

SIZES_BYTES = tuple(4**n for n in range(6, 12))
ROUNDS = 6
WINDOW_S = 0.02
HOSTS = ("scaling-a", "scaling-b")
ADDRESSES = ("10.213.0.1", "10.213.0.2")
LINKS = {
    "as it is": "",
    "1 Gbit/s": "tbf rate 1gbit burst 256kb latency 50ms",
    "500 us later": "netem delay 500us limit 100000",
}


def main() -> None:
    """Measure all links and print a table; or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    if (rank := parser.parse_args().rank) is not None:
        print(json.dumps(swept(rank)))
        return
    print("| link | alpha, us | beta, ns a byte | busbw at 4 MiB, GB/s | largest misfit |\n|---|---|---|---|---|")
    for name, limit in LINKS.items():
        try:
            with hosts(limit):
                print(row(name, measured()), flush=True)
        except subprocess.CalledProcessError as error:  # a kernel may come without netem
            print(f"| {name} | cannot be planted here: `{' '.join(error.cmd)}` exits with {error.returncode} |||")


def row(name: str, found: Fit) -> str:
    """One link in the table."""
    alpha, beta = found.alpha_s, found.beta_s_per_byte
    busbw = busbw_gb_per_s(SIZES_BYTES[-1], found.line.time_s(SIZES_BYTES[-1]), 2)
    ends = [f"[{part.low * by:.4g}, {part.high * by:.4g}]" for part, by in ((alpha, 1e6), (beta, 1e9))]  # type: ignore[operator]
    return (
        f"| {name} | {alpha.estimate * 1e6:.0f} {ends[0]} | {beta.estimate * 1e9:.2f} {ends[1]} | {busbw:.2f} | "
        f"{found.misfit:.2f} |"
    )


@contextlib.contextmanager
def hosts(limit: str) -> Iterator[None]:
    """Two hosts with a cable between them, each end of which sends as `limit` has it."""
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "cable", "netns", HOSTS[0], "type", "veth", "peer", "name", "cable", "netns", HOSTS[1])
        for host, address in zip(HOSTS, ADDRESSES, strict=True):
            ip("-n", host, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", host, "link", "set", "cable", "up")
            ip("-n", host, "link", "set", "lo", "up")
            if limit:
                subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", "cable", "root", *limit.split()], check=True)
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def ip(*arguments: str) -> None:
    """Run iproute2's `ip`."""
    subprocess.run(["ip", *arguments], check=True)


def measured() -> Fit:
    """The line through a sweep between the two hosts; the slower rank counts."""
    ranks = []
    for rank, host in enumerate(HOSTS):
        where = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500"}
        environment = quiet.environment(os.environ, "cpu") | where | {"GLOO_SOCKET_IFNAME": "cable"}
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "docs.evidence.links", "--rank", str(rank)]
        ranks.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    answers = [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in ranks]
    slowest = [[max(times) for times in zip(*of_size, strict=True)] for of_size in zip(*answers, strict=True)]
    return fit(SIZES_BYTES, slowest)


def swept(rank: int) -> list[list[float]]:
    """Seconds a call, for every size and round, on this rank. Both ranks draw the same order."""
    from torch import distributed  # only here: the process that starts the ranks can do without

    from suite.processes.jobs import Exchange
    from suite.rank.collectives import time_calls

    pinned = tuple((core,) for core in quiet.available_cores()[:2])
    exchange = Exchange(algorithm="gloo", processes="per-device", devices=("cpu", "cpu"), backend="gloo", pinned=pinned)
    rng = random.Random(0)
    samples: dict[int, list[float]] = {size: [] for size in SIZES_BYTES}
    for size in SIZES_BYTES:
        time_calls(rank, exchange, size, 1, check=True)
    for _ in range(ROUNDS):
        for size in rng.sample(SIZES_BYTES, len(SIZES_BYTES)):
            calls = max(1, round(WINDOW_S / (3e-4 + size * 4e-9)))  # the same on both ranks, whatever they measure
            samples[size].append(time_calls(rank, exchange, size, calls, check=False) / calls / 1e9)
    distributed.destroy_process_group()
    return list(samples.values())


if __name__ == "__main__":
    main()
