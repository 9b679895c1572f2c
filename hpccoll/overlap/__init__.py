"""Communication hidden behind computation: many arrays reduced in buckets while others are still computed."""

from hpccoll.overlap.buckets import GradientBuckets as GradientBuckets
from hpccoll.overlap.state import broadcast as broadcast
from hpccoll.overlap.times import Times as Times

__all__ = ["GradientBuckets", "Times", "broadcast"]
