"""The graceful stop of a run."""

import contextlib
import os
import signal
import threading
import time

import pytest
from torch.distributed import HashStore

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.runner.launch.graceful_stop import DrainConsensus, ReportExchange, drain_on_signal, order_stop
from pipetrain.runner.launch.signals import Interruption


def kill(number=signal.SIGINT, then=0.01):
    os.kill(os.getpid(), number)
    time.sleep(then)


def test_first_signal_stops_and_the_second_interrupts():
    stops = []
    before = signal.getsignal(signal.SIGINT)

    def stop():
        stops.append(len(stops))
        return True

    def twice():
        kill()
        assert stops == [0]
        kill()

    with pytest.raises(KeyboardInterrupt), drain_on_signal(stop, 60, Interruption()):
        twice()
    assert stops == [0]
    assert signal.getsignal(signal.SIGINT) is before


def test_run_that_takes_too_long_to_stop_is_interrupted(capfd):
    with pytest.raises(KeyboardInterrupt), drain_on_signal(lambda: True, 0.1, Interruption()):
        kill(then=5)
    assert "launch.stop_timeout=0.1 s" in capfd.readouterr().out


def test_repeated_signal_does_not_hurry_a_patient_run(capfd):
    interruption = Interruption()
    interruption.patient = True
    with drain_on_signal(lambda: True, 60, interruption):
        kill()
        kill()
    assert "once more" not in capfd.readouterr().out


def test_patient_run_that_takes_too_long_to_stop_is_interrupted():
    interruption = Interruption()
    interruption.patient = True
    with pytest.raises(KeyboardInterrupt), drain_on_signal(lambda: True, 0.1, interruption):
        kill(then=5)


def test_signal_interrupts_at_once_before_anything_to_save():
    with pytest.raises(KeyboardInterrupt), drain_on_signal(lambda: False, 60, Interruption()):
        kill()


def test_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with drain_on_signal(lambda: False, 60, Interruption()):
            kill(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_is_known_after_a_run_that_completed_all_the_same():
    interruption = Interruption()
    with contextlib.suppress(KeyboardInterrupt), drain_on_signal(lambda: False, 60, interruption):
        kill()
    with pytest.raises(KeyboardInterrupt):
        interruption.check()


def test_signal_handler_starts_no_thread():
    with drain_on_signal(lambda: True, 60, Interruption()):
        before = threading.active_count()
        kill()
        assert threading.active_count() == before
    assert threading.active_count() == before - 1


def test_signal_is_not_resent_to_run_that_ended_in_time():
    with drain_on_signal(lambda: True, 0.05, Interruption()):
        kill(then=0)
    time.sleep(0.1)


def test_workers_shut_gates_behind_furthest_minibatch():
    store, gates = HashStore(), [AdmissionGate() for _ in range(3)]
    agreements = [DrainConsensus(p, 3, gate) for p, gate in enumerate(gates)]
    for gate, begun in zip(gates, (4, 3, 2), strict=True):
        for _ in range(begun):
            assert gate.admits()
    for each in agreements:
        each.proceed(store)
    assert all(gate.admits() for gate in gates), "nobody has asked yet"

    gates[2].end()  # one is enough
    for each in (*reversed(agreements), *agreements):
        each.proceed(store)
    allowed = [sum(gate.admits() for _ in range(6)) for gate in gates]
    assert allowed == [0, 1, 2]
    assert [gate.ended_after for gate in gates] == [5, 5, 5]


def test_signal_to_one_worker_is_noted_by_all():
    store, gates, noted = HashStore(), [AdmissionGate() for _ in range(2)], [[], []]
    agreements = [DrainConsensus(p, 2, gate, noted[p].append) for p, gate in enumerate(gates)]
    order_stop(store, signal.SIGUSR1)  # as the one that has received it does
    gates[0].end()
    for each in (*agreements, *agreements):
        each.proceed(store)
    assert [gate.ends for gate in gates] == [True, True]
    assert noted == [[], [signal.SIGUSR1]]


def test_workers_pause_and_go_on_and_learn_of_an_end_meanwhile():
    store, gates = HashStore(), [AdmissionGate() for _ in range(2)]
    agreements = [DrainConsensus(p, 2, gate) for p, gate in enumerate(gates)]

    def agree():
        for each in (*agreements, *agreements):
            each.proceed(store)

    assert gates[0].admits()
    gates[1].pause()
    agree()
    assert gates[1].admits(), "it is behind"
    assert [gate.admits() for gate in gates] == [False, False]
    for gate in gates:
        gate.open()
    agree()
    assert [gate.admits() for gate in gates] == [True, True]
    assert [gate.ends for gate in gates] == [False, False]
    gates[0].pause()
    agree()
    gates[1].end()
    agree()
    assert [gate.ends for gate in gates] == [True, True]
    assert [gate.admits() for gate in gates] == [False, False]
    assert [gate.ended_after for gate in gates] == [2, 2]


def reports(process, own):
    made = ReportExchange(process, 2)
    made.own = lambda: own
    return made


def test_worker_answers_when_asked_and_silent_one_gives_none():
    store = HashStore()
    first, second = reports(0, [{"stage": 0}]), reports(1, [{"stage": 1}])
    second.answer(store)
    assert first.ask(store, seconds=0.05) == [[{"stage": 0}], None]
    second.answer(store)
    assert first.ask(store, seconds=5.0) == [[{"stage": 0}], [{"stage": 1}]]
