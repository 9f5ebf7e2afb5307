"""A test that hangs ends at its deadline: it fails, or ends the run where the interpreter is frozen."""

from __future__ import annotations

import pytest

from suite.room.devices import Devices
from tests.support import deadlines
from tests.support.measurements import arm, cell, run_of, settings
from tests.support.project import REPOSITORY, Project

# Until a run times a first step, workers load torch one after the other: to confirm the GPUs, to describe the trainers,
# and to time them. Beside other tests each takes several times what it takes alone (docs/log.md: 4.7 s on two cores).
STARTS, LOAD_S = 3, 30.0

HEAD = """
import ctypes, threading, time
import hypothesis, pytest

def wait():
    threading.Event().wait()

def freeze():
    mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # PyDLL keeps the interpreter's lock
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""

HANGS = """
@pytest.fixture
def slow_to_make():
    wait()

@pytest.fixture
def slow_to_end():
    yield
    wait()

@pytest.mark.parametrize("n", [1])
def test_waits(n):
    threading.Thread(target=lambda: time.sleep(60), name="beside", daemon=True).start()
    wait()

@hypothesis.given(hypothesis.strategies.integers())
def test_waits_in_an_example(n):
    wait()

def test_waits_before(slow_to_make):
    pass

def test_fails_and_waits_after(slow_to_end):
    assert False

def test_is_fine():
    pass
"""

FREEZES = """
@pytest.mark.parametrize("n", [1])
def test_freezes(n):
    threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
    freeze()
"""

LEAVES_A_THREAD = """
def test_passes():
    threading.Thread(target=wait).start()
"""


FREEZES_AT_IMPORT = """
freeze()
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytest.importorskip("pytest_timeout")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("COLUMNS", "160")  # wide enough for the name of an exception in the summary
    return pytester


def run(inner: pytest.Pytester, tests: str, *settings: str) -> pytest.RunResult:
    """Run tests with a deadline of half a second, and with other settings of `tests.support.deadlines`."""
    inner.makeconftest("\n".join(["from tests.support import deadlines", *settings]))
    inner.makepyfile(test_it=HEAD + tests)
    plugins = ["-p", "tests.support.deadlines", "-p", "no:suite.plugin", "-p", "no:benchmark"]
    return inner.runpytest_subprocess(*plugins, "--timeout=0.5", timeout=90)


def test_a_hang_is_one_failure_with_all_stacks_and_the_run_goes_on(inner: pytest.Pytester) -> None:
    """Tests hang in their body, in an example of hypothesis, in setup, and in the teardown after a failure."""
    done = run(inner, HANGS)
    done.assert_outcomes(passed=1, failed=3, errors=2)
    hung = "test_it.py::{} - tests.support.deadlines.Hung: *"
    done.stdout.fnmatch_lines_random(
        [
            "FAILED " + hung.format("test_waits[[]1[]]"),
            "FAILED " + hung.format("test_waits_in_an_example"),
            "ERROR " + hung.format("test_waits_before"),
            "ERROR " + hung.format("test_fails_and_waits_after"),
        ]
    )
    done.stdout.fnmatch_lines(["*Stack of beside*", "*in <lambda>"])


def test_a_frozen_interpreter_ends_the_run_with_all_stacks_and_the_name(inner: pytest.Pytester) -> None:
    done = run(inner, FREEZES, "deadlines.GRACE_S = 0.2")
    assert done.ret == 1
    done.stderr.fnmatch_lines(["Timeout*", "Thread *", "*in <lambda>", "Thread *", "*in freeze", "*in test_freezes"])
    done.stderr.fnmatch_lines(["*in test_it.py::test_freezes[[]1[]]"])


def test_a_session_that_does_not_end_is_ended(inner: pytest.Pytester) -> None:
    """The interpreter waits for a thread that a test left running."""
    done = run(inner, LEAVES_A_THREAD, "deadlines.TEST_S = deadlines.GRACE_S = 0.5")
    done.assert_outcomes(passed=1)
    assert done.ret == 1
    done.stderr.fnmatch_lines(["Timeout*", "*in wait", "*in _shutdown"])


def test_a_module_that_freezes_at_import_ends_the_run(inner: pytest.Pytester) -> None:
    done = run(inner, FREEZES_AT_IMPORT, "deadlines.TEST_S = deadlines.GRACE_S = 0.5")
    assert done.ret == 1
    done.stderr.fnmatch_lines(["Timeout*", "*in freeze"])


def test_each_module_has_a_deadline_of_its_own(inner: pytest.Pytester) -> None:
    """On a busy machine the imports of all modules take longer than one of them may."""
    for number in range(6):
        inner.makepyfile(**{f"test_slow_{number}": "import time\ntime.sleep(0.5)\ndef test_passes(): pass"})
    done = run(inner, "", "deadlines.TEST_S, deadlines.GRACE_S = 2.5, 0.0")
    done.assert_outcomes(passed=6)


def test_a_test_on_gpus_has_time_for_ranks_that_each_load_torch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No template is forked there: a check may start groups of four sizes, and one that is ended ends their ranks."""
    monkeypatch.setattr(request.config.option, "timeout", None, raising=False)
    usual_s = deadlines.deadline_s(request.node)
    request.node.add_marker(pytest.mark.gpu)
    assert deadlines.deadline_s(request.node) == 3 * usual_s


def test_a_module_of_another_project_is_watched_no_longer_than_its_import(inner: pytest.Pytester) -> None:
    """`--pyargs` loads the conftest of a package, and with it the deadlines, when collection has begun."""
    inner.mkpydir("package").joinpath("conftest.py").write_text(
        "from tests.support import deadlines\n"
        "pytest_plugins = ['tests.support.deadlines']\n"
        "deadlines.TEST_S = deadlines.GRACE_S = 0.75\n"
    )
    inner.path.joinpath("package", "test_long.py").write_text(
        "import pytest, time\n@pytest.mark.scaling\ndef test_it(): time.sleep(2)\n"
    )
    plugins = ["-p", "no:torch_scaling_suite", "-p", "no:benchmark", "-W", "ignore"]
    done = inner.runpytest_subprocess(*plugins, "--pyargs", "package.test_long", timeout=90)
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize(("kind", "marker"), [("cpu", "end_to_end"), ("cuda", "gpu")])
def test_a_run_that_hangs_ends_and_is_shown_before_the_test_that_started_it_ends(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str, marker: str
) -> None:
    """The run's own deadline ends the hang, and the starts come on top."""
    monkeypatch.setattr(request.config.option, "timeout", None, raising=False)
    request.node.add_marker(marker)
    given_s: list[float] = []
    monkeypatch.setattr(pytester, "runpytest_subprocess", lambda *_, timeout: given_s.append(timeout))
    project = Project(pytester, monkeypatch, deadlines.inner_s(request.node))
    project.scaling()
    project.typed("pytest")
    run = run_of(cell(), config=settings(devices=Devices(kind, (kind,) * 2, ())))
    ends_s = run.plan.first_step_s(arm()) + STARTS * LOAD_S
    assert [ends_s < each_s < deadlines.deadline_s(request.node) for each_s in given_s] == [True, True]
    assert ends_s < deadlines.WHOLE_S < deadlines.END_TO_END_S
