"""Stores in which nobody else leaves word: what others write there, and what they can read."""

import stat
from types import SimpleNamespace

import pytest
from support.sleepers import beat_of
from torch.distributed import HashStore

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.runner.launch import stores
from pipetrain.runner.launch.consensus import DrainConsensus, ReportExchange, order_stop
from pipetrain.runner.launch.heartbeat import Heartbeat
from pipetrain.runner.launch.stores import PrivateFolder, SignedStore, shared_key

KEY = bytes(range(32))


def test_value_in_private_folder_is_replaced_as_a_whole(tmp_path):
    one, other = PrivateFolder(tmp_path), PrivateFolder(tmp_path)
    assert not other.check(["a/b"])
    for value in ("long " * 300, "short", ""):
        one.set("a/b", value)
        assert other.get("a/b") == value.strip().encode()
    assert other.check(["a/b"])
    assert not other.check(["a/b", "a/c"])
    assert [path.name for path in tmp_path.iterdir()] == ["a,b"]


def test_value_on_full_disk_is_overwritten_in_its_place(tmp_path, monkeypatch):
    board = PrivateFolder(tmp_path)
    board.set("beat", "first")

    def full(_path, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    board.set("beat", "second")
    assert board.get("beat") == b"second"
    with pytest.raises(RuntimeError, match="new"):
        board.set("new", "value")


def test_folder_that_is_gone_is_a_store_that_is_gone(tmp_path):
    board = PrivateFolder(tmp_path / "gone")
    assert not board.check(["key"])
    for call in (lambda: board.set("key", "value"), lambda: board.get("key")):
        with pytest.raises(RuntimeError, match="gone"):
            call()


def test_signed_value_is_read_by_who_has_the_key(capsys):
    store = HashStore()
    SignedStore(store, KEY, "run").set("key", "välue")
    assert SignedStore(store, KEY, "run").check(["key"])
    assert SignedStore(store, KEY, "run").get("key").decode() == "välue"
    for key, name in ((KEY, "other run"), (bytes(32), "run")):
        assert not SignedStore(store, key, name).check(["key"])
    assert capsys.readouterr().err.count("warning: the store holds key, which no process of this run wrote") == 2


def test_foreign_values_are_as_good_as_absent_and_said_once(capsys):
    store = HashStore()
    board = SignedStore(store, KEY)
    board.set("signed", "7")
    store.set("copied", store.get("signed"))
    store.set("forged", "7")
    for _ in range(3):
        for key in ("copied", "forged"):
            assert not board.check([key])
            assert board.get(key) == b""
    assert not board.check(["signed", "forged"])
    assert capsys.readouterr().err.count("\n") == 1


def forge(store):
    """What another user's program writes, without the key."""
    store.set("pipetrain/break-off", "15")
    store.set("pipetrain/drain/0", "1")
    store.set("pipetrain/stop", "1")
    for process in (0, 1):
        beat_of(process, 1, number=99, finished=True).publish(store)
        store.set(f"pipetrain/begun/0/{process}", "0")
        store.set(f"pipetrain/report/{process}", "forged")


def test_forged_orders_end_nothing_and_own_ones_still_do():
    store = HashStore()
    boards, gates = [SignedStore(store, KEY) for _ in range(2)], [AdmissionGate() for _ in range(2)]
    consensus = [DrainConsensus(process, 2, gate) for process, gate in enumerate(gates)]
    forge(store)
    for _ in range(3):
        for each, board in zip(consensus, boards, strict=True):
            each.proceed(board)
    assert not any(gate.ends or gate.wanted for gate in gates)
    assert Heartbeat.read(boards[0], (0, 1)) == {}
    order_stop(boards[0])
    for _ in range(3):
        for each, board in zip(consensus, boards, strict=True):
            each.proceed(board)
    assert all(gate.ends for gate in gates)
    reports = [ReportExchange(process, 2) for process in range(2)]
    for process, each in enumerate(reports):
        each.own = lambda process=process: [process]
        each.answer(boards[process])
    assert reports[0].ask(boards[0], 0.0) == [[0], None]


@pytest.mark.parametrize("entry", ["", "x", "1.5", "[" * 100_000, "null"])
def test_garbage_in_store_without_secret_ends_nothing(entry):
    store, gate = HashStore(), AdmissionGate()
    board = SignedStore(store, None)
    for key in ("break-off", "begun/0/0", "beat/0", "report/1"):
        store.set(f"pipetrain/{key}", entry)
    consensus = DrainConsensus(0, 2, gate)
    consensus.proceed(board)
    assert not gate.ends
    gate.pause()
    consensus.proceed(board)
    assert Heartbeat.read(board, [0]) == {}
    assert isinstance(ReportExchange(0, 2).ask(board, 0.0)[1], float | None)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """All processes are on one machine, and nothing else is given."""
    monkeypatch.setattr(stores.pwd, "getpwuid", lambda _user: SimpleNamespace(pw_dir=str(tmp_path)))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv(stores.SECRET, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("machine")
def test_processes_of_one_user_on_one_machine_share_a_key_that_others_cannot_read(tmp_path):
    key = shared_key()
    assert len(key) == 32
    assert shared_key() == key
    file = tmp_path / ".cache" / "pipetrain" / "store-key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["store-key"]
    file.chmod(0o644)
    assert shared_key() is None


def test_several_machines_share_only_the_given_secret(machine):
    machine.setenv("LOCAL_WORLD_SIZE", "2")
    assert shared_key() is None
    machine.setenv(stores.SECRET, "of this job")
    key = shared_key()
    machine.setenv(stores.SECRET, "of another job")
    assert None not in (key, shared_key())
    assert key != shared_key()
