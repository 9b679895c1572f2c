"""Plans replayed by SimGrid, a simulator of others, on the platform that ours simulates."""
