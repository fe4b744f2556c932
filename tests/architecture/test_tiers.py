"""Each table of checkpoint tiers has all of them."""

from headway.cli.views.plan_checkpoints import WHERE
from headway.planner.goodput.tiers import KINDS
from headway.runner.contract import CAPTURED_TIERS, STORED_TIERS, TIER_KINDS


def test_tables_have_every_tier() -> None:
    assert set(WHERE) == {*TIER_KINDS}
    assert KINDS == TIER_KINDS
    # A tier in neither set would be saved and never restored from.
    assert {*CAPTURED_TIERS, *STORED_TIERS} == {*TIER_KINDS}
