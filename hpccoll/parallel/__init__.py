"""Data, tensor and pipeline parallelism, placed on the machine: see docs/parallel.md."""

from hpccoll.parallel.mesh import Mesh
from hpccoll.parallel.placement import Placement, place
from hpccoll.parallel.traffic import SHIFT, Use

__all__ = ["SHIFT", "Mesh", "Placement", "Use", "place"]
