"""The rows of largest stable steps hold the setting that they vary."""

import pytest

from papers.stability.lemmas import delay_limit
from papers.stability.tables import Setting, by_delay, by_discrepancy


def test_stability_tables_hold_the_chosen_setting():
    setting = Setting(curvature=2.0, discrepancy=3.0, tau_forward=12, tau_backward=4, tau_recompute=6, decay=0.1)
    row = next(row for row in by_delay(setting) if row["tau_forward"] == 12)
    assert (row["tau_backward"], row["tau_recompute"]) == (4, 6)
    assert row["no_discrepancy"] == pytest.approx(delay_limit(12, 2.0))
    other = next(row for row in by_discrepancy(setting) if row["discrepancy"] == 3.0)
    assert {key: other[key] for key in other if key != "discrepancy"} == {key: row[key] for key in other.keys() & row}
    assert all(row["plain_rule"] > 0 for row in by_delay(setting))
