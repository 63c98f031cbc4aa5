"""Agreement of all workers on where the pipeline drains, and the collection of their reports."""

import signal

from counting_store import CountingStore
from torch.distributed import HashStore

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.runner.launch.consensus import DrainConsensus, ReportExchange, is_ordered, order_stop


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


def test_first_worker_alone_reads_how_far_all_are():
    store, gates = CountingStore(HashStore()), [AdmissionGate() for _ in range(64)]
    agreements = [DrainConsensus(p, 64, gate) for p, gate in enumerate(gates)]
    assert not is_ordered(store)
    gates[5].end()
    for _ in range(3):
        for each in agreements:
            each.proceed(store)
    assert is_ordered(store)
    assert not any(each.holds for each in agreements)
    assert store.taken().keys <= 64 * 20, "of one worker that reads the numbers of all"


def reports(process, own):
    made = ReportExchange(process, 2)
    made.own = lambda: own
    return made
