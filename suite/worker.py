"""One worker process: one rank. Obeys the controller's commands, one at a time, and answers in JSON.

It is started by torch's launcher, or forked from `suite.template`, with RANK, WORLD_SIZE and the store's address in its
environment, and never imports the plugin. A stranger's trainer, model and dataset run here and nowhere else. Whatever a
command raises goes back to the controller with its traceback; SIGUSR1 prints every thread's stack to stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from suite.processes import failure
from suite.processes.channel import MAX_LINE_BYTES, Channel, ChannelClosed, Message, encode
from suite.room import quiet


def main(argv: Sequence[str] | None = None) -> None:
    """Connect, then serve commands until told to exit or until the controller has gone.

    Args:
        argv: the command line's arguments, by default this process's own.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--path", action="append", default=[], help="import from here, instead of from PYTHONPATH")
    arguments = parser.parse_args(argv)
    quiet.die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to act on
    if arguments.path:
        _import_from(arguments.path)
    rank = int(os.environ["RANK"])
    channel = Channel.connect(arguments.socket)
    channel.send({"event": "hello", "group": arguments.group, "rank": rank, "pid": os.getpid()})
    serve(channel, rank)


def _import_from(paths: Sequence[str]) -> None:
    """Put folders in the place of those of PYTHONPATH, for this process and for those that it starts."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*paths, *(entry for entry in sys.path if entry not in before)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def serve(channel: Channel, rank: int) -> None:
    """The loop over commands."""
    with quiet.fast_imports():
        # Only once the controller knows our pid. DistributedDataParallel and torch.optim load the compiler at their
        # first use, which takes as long as loading torch: it is loaded before this process is pinned to its core.
        importlib.import_module("torch._dynamo")
        from suite.rank.commands import COMMANDS, SELF_EXPLAINING, State

    state = State(rank)
    while True:
        try:
            message: Message = channel.receive()  # no deadline: it ends when the controller goes
        except ChannelClosed:
            break
        name = message.pop("command")
        if name == "exit":
            break
        try:
            answer = COMMANDS[name](state, **message)
        except BaseException as error:
            plain = isinstance(error, SELF_EXPLAINING) and name not in ("load", "call")  # a test's own code
            trace = "" if plain else traceback.format_exc()
            text = failure.shortened(f"{type(error).__name__}: {error}")
            answer = {"error": text, "traceback": failure.shortened(trace)}
        if (size := len(encode(answer))) > MAX_LINE_BYTES:
            too_long = f"the answer to {name!r} has {size} bytes, above the {MAX_LINE_BYTES} of a message"
            answer = {"error": f"ValueError: {too_long}", "traceback": ""}
        channel.send(answer)
    state.close()
    sys.stdout.flush()
    # No interpreter shutdown: a stranger's threads, or torch's, must not keep a measured machine busy or hang here.
    os._exit(0)


if __name__ == "__main__":
    main()
