"""What workers have measured when their run stops early, by a store that they share."""

from torch.distributed import HashStore

from pipetrain.launch.end_reports import EndReports


def reports(process, own):
    made = EndReports(process, 2)
    made.own = lambda: own
    return made


def test_worker_answers_once_it_is_asked_and_a_silent_one_gives_none():
    store = HashStore()
    first, second = reports(0, [{"stage": 0}]), reports(1, [{"stage": 1}])
    second.answer(store)
    assert first.ask(store, seconds=0.05) == [[{"stage": 0}], None]
    second.answer(store)
    assert first.ask(store, seconds=5.0) == [[{"stage": 0}], [{"stage": 1}]]
