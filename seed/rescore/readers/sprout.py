"""Sprout's own trajectories, as `collect` and `train` write them."""

from collections.abc import Mapping
from typing import Any

from sprout.seed.rescore.readers import Line
from sprout.seed.trajectory import Trajectory, parse_trajectory


def recognises(record: Mapping[str, Any]) -> bool:
    """It has our schema_version."""
    return "schema_version" in record


def read(record: Mapping[str, Any], line: Line) -> Trajectory:
    """The stored trajectory, ids and all."""
    return parse_trajectory(line.content, line.place)
