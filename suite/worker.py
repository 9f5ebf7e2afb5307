"""One worker process: one rank. Obeys the controller's commands, one at a time, and answers in JSON.

It is started by torch's launcher, or forked from `suite.template`, with RANK, WORLD_SIZE and the store's address in its
environment, and never imports the plugin. The user's trainer, model and dataset run here and nowhere else. Whatever a
command raises goes back to the controller with its traceback and NCCL's last warnings; `failure.ASKS` prints every
thread's stack to stderr, the last collective and those warnings.

Without arguments, under torchrun, it is what a host contributes to a run on several: a launcher that starts workers for
the controller of another host (docs/adr/0014).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from suite.processes import failure, hosts, reaper
from suite.processes.channel import MAX_LINE_BYTES, Answer, Channel, ChannelClosed, Hello, Launcher, Message, encode
from suite.processes.folder import TemporaryFolder, unusable
from suite.rank import recorder
from suite.room import errors, quiet

if TYPE_CHECKING:
    from suite.rank.commands import State


def main(argv: Sequence[str] | None = None) -> None:
    """Connect, then serve commands until told to exit or the controller has gone; without arguments, `contribute`."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        try:
            sys.exit(contribute())
        finally:
            _remove_logs_of_torchrun()
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--path", action="append", default=[], help="import from here, instead of from PYTHONPATH")
    parser.add_argument("--ranks", help="of this host's processes, in a group that may span hosts")
    parser.add_argument("--world-size", help="of such a group")
    arguments = parser.parse_args(argv)
    quiet.die_with_parent()
    quiet.run_out_of_memory_first()
    faulthandler.enable()
    recorder.listen()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to act on
    if arguments.path:
        _import_from(arguments.path)
    if arguments.ranks:
        os.environ["RANK"] = arguments.ranks.split(",")[int(os.environ["LOCAL_RANK"])]
        os.environ["WORLD_SIZE"] = arguments.world_size
    rank = int(os.environ["RANK"])
    if arguments.socket.startswith(hosts.SCHEME):
        channel = hosts.dial(arguments.socket, hosts.secret_here())
        del os.environ[hosts.SECRET]  # the user's code and what it starts do without
    else:
        channel = Channel.connect(arguments.socket)
    channel.send(Hello(arguments.group, rank, os.getpid()))
    serve(channel, rank)


def contribute() -> int:
    """Start this host's workers for the controller of another host until its run is over; return an exit status."""
    from suite.base import git
    from suite.room.devices import cuda_count, torch_build

    missing = [name for name in (hosts.ENDPOINT, hosts.SECRET) if not os.environ.get(name)]
    if missing:
        print(f"{', '.join(missing)} must be set as where pytest runs (docs/several-machines.md)", file=sys.stderr)
        return 2
    try:
        folder = TemporaryFolder("host-")
    except OSError as error:
        print(unusable(error), file=sys.stderr)
        return 2
    try:
        about = folder.path / "about.json"
        here = Launcher(
            host=socket.gethostname(),
            torch=torch_build().version,
            commit=git.commit_here(Path.cwd()),
            files=git.digests(Path.cwd()),
            cores=len(quiet.available_cores()),
            gpus=cuda_count(),
            node=int(os.environ.get("GROUP_RANK", "0")),
        )
        about.write_bytes(encode(here))
        status = reaper.main([str(folder.path), "suite.launch", "--about", str(about)])
        print("served the controller until the run was over" if status == 0 else "took no part", file=sys.stderr)
        return status
    finally:
        folder.close()


def _remove_logs_of_torchrun() -> None:
    """Remove the folder in TMPDIR that torchrun makes for its logs and leaves, unless something was written there."""
    # torchelastic_*/RUN_*/attempt_0/RANK/error.json; a folder that the user named with --log-dir stays.
    folders = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents[:4]
    if folders and folders[-1].name.startswith("torchelastic_"):
        with contextlib.suppress(OSError):  # not empty
            for folder in folders:
                folder.rmdir()


def _import_from(paths: Sequence[str]) -> None:
    """Put folders in the place of those of PYTHONPATH, for this process and for those that it starts."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*paths, *(entry for entry in sys.path if entry not in before)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def serve(channel: Channel, rank: int) -> None:
    """Serve commands until told to exit, or until the controller has gone."""
    with quiet.fast_imports():
        # Only once the controller knows our pid. DistributedDataParallel and torch.optim load the compiler at their
        # first use, which takes as long as loading torch: it is loaded before this process is pinned to its core.
        importlib.import_module("torch._dynamo")
        from suite.rank.commands import State

    Service(channel, State(rank)).obey()


class Service:
    """Obeys the controller, in the main thread or, where that belongs to a script, beside it."""

    def __init__(self, channel: Channel, state: State) -> None:
        self._channel, self._state = channel, state

    def obey(self) -> NoReturn:
        """Obey until told to exit; then end this process without the interpreter's shutdown.

        The user's threads, or torch's, must not keep a measured machine busy or hang there.
        """
        from suite.rank.commands import Takeover, obey

        while True:
            try:
                message: Message = self._channel.receive()  # no deadline: it ends when the controller goes
            except ChannelClosed:
                break
            name, number = message.pop("command"), message.pop("number")
            if name == "exit":
                break
            if not message.get("arm", {}).get("script"):  # which needs a process of one thread at first
                recorder.start()
            answer = self._answer(name, partial(obey, self._state, name, message))
            recorder.start(answer.so_far if isinstance(answer, Takeover) else None)
            if isinstance(answer, Takeover):  # the main thread is the script's from now on
                threading.Thread(target=self._beside, args=(name, number, answer.reach), daemon=True).start()
                answer.run()
            self._send(name, number, answer)
        self._state.close()
        sys.stdout.flush()
        os._exit(0)

    def _beside(self, name: str, number: int, reach: Callable[[], Any]) -> None:
        try:
            self._send(name, number, self._answer(name, reach))
            self.obey()
        finally:
            os._exit(1)  # the script's thread would outlive whom it serves

    @staticmethod
    def _answer(name: str, act: Callable[[], Any]) -> Any:
        """Return what a command returns, or what it raised."""
        from suite.rank.commands import SELF_EXPLAINING

        try:
            return act()
        except BaseException as error:
            plain = isinstance(error, SELF_EXPLAINING) and name not in ("load", "call")  # a test's own code
            said = "" if plain else traceback.format_exc().rstrip()
            text = failure.shortened(errors.described(error))
            trace = "\n".join(filter(None, [said, *recorder.warnings()]))
            return {"error": text, "traceback": failure.shortened(trace)}

    def _send(self, name: str, number: int, answer: Any) -> None:
        if (size := len(encode(Answer(number, answer)))) > MAX_LINE_BYTES:
            too_long = f"the answer to {name!r} has {size} bytes, above the {MAX_LINE_BYTES} of a message: use less"
            answer = {"error": f"ValueError: {too_long}", "traceback": ""}
        self._channel.send(Answer(number, answer))


if __name__ == "__main__":
    main()
