"""What a program's calls did and do: recorded by each rank, read and judged by `hpccoll trace`."""
