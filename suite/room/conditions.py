"""The conditions of a timed block, and the rules that call a block or a window disturbed. Pure.

`suite.room.meter` and the ranks read them.

The rules are fixed in advance and see no duration that is judged. The first marks a block with all its arms, so that
it favours neither side of a comparison.

**The limit, a tenth of a core.** A process that uses the share f of a core lengthens, at worst, the windows of one arm
alone. In a block of two arms each has half the time, so that this arm takes 2 f longer. An undisturbed block's pair
scatters by 7 % (two ranks on a shared machine, see `suite.run.timer`). The limit is where such a process moves a pair
by three of these: 2 f = 21 %, f = 10 %. Less is ordinary noise to a session. The same holds for time that
a hypervisor takes. Daemons and the kernel keep threads on every core, and spread evenly they move all arms alike: above
ten cores the limit is one percent of each. On an idle 2-core machine everything together, the reading included, used
1.5 % of a core (six ticks in four seconds).

**The resolution.** Kernels count CPU time in ticks of 10 ms and show each field rounded down. The difference of two
such readings is off by less than a tick either way, with variance tick²/6. What others used is made from three fields
of the machine and two of each process of ours that ran, so three standard deviations are 3 tick √((3 + 2 n)/6): 37 ms
for two ranks and the controller, 8 % of a core in a block of half a second. Where this process may use only some of the
machine's cores, there are three fields of each of them. A block is marked beyond limit plus resolution; rounding then
marks about one in a thousand of the blocks that are just at the limit, and fewer of the others. A single shorter burst
is not seen; the faster half of the windows hardly moves with it.

**Windows.** On a CPU a rank also tells for how long others had its own cores (`suite.rank.timing`), to the microsecond.
A kernel's thread that runs for 20 ms in every second is far below the limit of a block, and lengthens every sixth
window of two ranks by a sixth; on an idle 2-core machine others had half a percent of a window. A window in which they
had more than 5 % is disturbed. What a trainer itself does on its cores, in whichever thread, is its own; where it has
child processes, nothing is told.

**GPUs.** A block is disturbed when a card lowered its clocks to protect itself (heat, power supply), when it fell off
its bus, or when a process appeared that was not there before the run. The software power cap is recorded only: large
cards reach it in every heavy kernel, all arms alike. Clocks, temperatures, power and ECC errors are recorded only, too;
`suite.room.hardware` says what in them is unusual.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.room.part import Part

LIMIT_CORES = 0.10
LIMIT_PER_CORE = 0.01
TICK_S = 0.01  # USER_HZ on x86 and ARM
MACHINE_FIELDS = 3  # user, nice, system
PROCESS_FIELDS = 2  # user, system

LIMIT_PERCENT = 5  # of a window

PROTECTIVE = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"})


class GpuConditions(Part):
    """One GPU during a block; None is what its driver does not report."""

    index: int  # as in the device's name, cuda:0 is 0
    mhz: int | None = None  # of the multiprocessors, the median at the ends of the windows in which it worked
    celsius: int | None = None  # at the block's end
    watts: float | None = None  # the mean over the block
    # Why clocks were held down, by NVML's names, at either end, at a window's end, or (heat, power cap) in between.
    throttled: tuple[str, ...] = ()
    ecc_errors: int | None = None  # new ones, corrected or not
    uncorrected: int | None = None  # new ones that were not corrected
    newcomers: tuple[int, ...] = ()  # processes that are not ours and were not there before the run
    lost: bool = False  # whether the card had fallen off its bus
    xids: tuple[int, ...] = ()  # numbers of the driver's new errors


class Conditions(Part):
    """The machine during a block; None is what it does not report."""

    elapsed_s: float  # between the two readings
    cores: int  # that this process may use
    steal: float | None = None  # cores that the hypervisor took from us: 0.25 is a quarter of one core, all the time
    foreign: float | None = None  # how many of these cores processes other than ours used, without time in interrupts
    resolution: float  # cores; three standard deviations of the error of `foreign`
    load: float  # the load average over one minute, at the end; ours is in it
    mhz: float | None = None  # the slowest of the cores that ranks are bound to, at the end
    gpus: tuple[GpuConditions, ...] = ()


def disturbed(conditions: Conditions) -> str:
    """Return why a block with these conditions does not count; "" where it counts."""
    limit = limit_cores(conditions)
    reasons = []
    if conditions.steal is not None and conditions.steal > limit:
        reasons.append(f"the hypervisor took {conditions.steal:.0%} of a core")
    if conditions.foreign is not None and conditions.foreign > limit:
        reasons.append(f"other processes used {conditions.foreign:.0%} of a core")
    for gpu in conditions.gpus:
        if held := sorted(PROTECTIVE.intersection(gpu.throttled)):
            reasons.append(f"GPU {gpu.index} was throttled ({', '.join(held)})")
        if gpu.lost:
            reasons.append(f"GPU {gpu.index} has fallen off its bus")
        if gpu.newcomers:
            reasons.append(f"another process appeared on GPU {gpu.index} (pid {', '.join(map(str, gpu.newcomers))})")
    return "; ".join(reasons)


def interrupted(duration_ns: Sequence[int], others_ns: Sequence[int]) -> bool:
    """Return whether others had the cores of any rank for more than a twentieth of its window."""
    return any(100 * other > LIMIT_PERCENT * duration for duration, other in zip(duration_ns, others_ns, strict=False))


def limit_cores(conditions: Conditions) -> float:
    """Return how many cores others may use before a block is disturbed."""
    return max(LIMIT_CORES, LIMIT_PER_CORE * conditions.cores) + conditions.resolution


def resolution_s(processes: int, counters: int = 1) -> float:
    """Return three standard deviations of the error of foreign CPU time, in seconds.

    It comes from `processes` of ours, and from `counters` of the machine or of single cores that were added up.
    """
    return 3 * TICK_S * float(((MACHINE_FIELDS * counters + PROCESS_FIELDS * processes) / 6) ** 0.5)
