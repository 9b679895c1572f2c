"""Carrying plans out: the resumable executor, the agreement check, waits and requests."""
