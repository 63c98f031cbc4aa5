"""How workers agree where the run is broken off."""

from torch.distributed import HashStore

from pipetrain.executors.admission_gate import AdmissionGate
from pipetrain.launch.agreement import Agreement


def test_workers_shut_their_gates_behind_the_minibatch_of_the_one_ahead():
    store, gates = HashStore(), [AdmissionGate() for _ in range(3)]
    agreements = [Agreement(p, 3, gate) for p, gate in enumerate(gates)]
    for gate, begun in zip(gates, (4, 3, 2), strict=True):
        for _ in range(begun):
            assert gate.admits()
    for each in agreements:
        each.proceed(store)
    assert all(gate.admits() for gate in gates), "nobody has asked yet"

    agreements[2].ask()  # one is enough
    for each in (*reversed(agreements), *agreements):
        each.proceed(store)
    allowed = [sum(gate.admits() for _ in range(6)) for gate in gates]
    assert allowed == [0, 1, 2]
    assert [gate.ended_after for gate in gates] == [5, 5, 5]


def test_workers_pause_and_go_on_and_learn_of_an_end_meanwhile():
    store, gates = HashStore(), [AdmissionGate() for _ in range(2)]
    agreements = [Agreement(p, 2, gate) for p, gate in enumerate(gates)]

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
    agreements[1].ask()
    agree()
    assert [gate.ends for gate in gates] == [True, True]
    assert [gate.admits() for gate in gates] == [False, False]
    assert [gate.ended_after for gate in gates] == [2, 2]
