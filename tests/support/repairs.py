"""Carrying out a plan of a repair."""

from collections.abc import Mapping

from archiver.maintain.planned import Problem
from archiver.maintain.repair.plan import RepairPlan


def carry_out(plan: RepairPlan) -> Mapping[int, Problem]:
    """Take every step; what failed, by its place in the plan."""
    plan.carry_out()
    return plan.failed
