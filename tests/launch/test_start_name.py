"""All processes of a start call it the same, and no other start so."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from pipetrain.launch.start_name import agreed_name


def names(store, ranks, num_processes=3):
    with ThreadPoolExecutor() as pool:
        return [*pool.map(lambda rank: agreed_name(store, rank, num_processes), ranks)]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (2, 1, 0)])
def test_processes_of_each_start_have_a_name_of_their_own_though_the_store_stays(ranks):
    store = HashStore()
    first, second = names(store, ranks), names(store, ranks)
    assert len({*first}) == len({*second}) == 1
    assert first[0] != second[0]


def test_calls_of_processes_that_are_gone_keep_nobody_from_agreeing():
    store = HashStore()
    for rank in (1, 2):
        store.set(f"pipetrain/call/{rank}", "gone")
        store.set(f"pipetrain/answer/{rank}", "gonelong ago")
    assert len({*names(store, (0, 1, 2))}) == 1


def test_process_alone_names_its_start_itself():
    assert agreed_name(HashStore(), 0, 1) != agreed_name(HashStore(), 0, 1)
