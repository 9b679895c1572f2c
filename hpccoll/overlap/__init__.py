"""Communication hidden behind computation: many arrays reduced in buckets while others are still computed."""

from hpccoll.observe.overlapped import Times as Times
from hpccoll.overlap.buckets import GradientBuckets as GradientBuckets
from hpccoll.overlap.state import broadcast as broadcast

__all__ = ["GradientBuckets", "Times", "broadcast"]
