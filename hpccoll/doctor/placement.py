"""Checks of how the ranks were started, and where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpccoll.doctor.finding import ABSENT, NOTE, UNKNOWN, WRONG, Finding
from hpccoll.topology.devices import choose_visible_devices, shared_devices
from hpccoll.topology.hardware.affinity import numa_node
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.files import format_numbers
from hpccoll.topology.launch import launch_warning, tasks_of_step
from hpccoll.topology.layout import Layout
from hpccoll.topology.machine import Machine
from hpccoll.topology.notation import format_ranks


def processes(environ: Mapping[str, str], world_size: int, library: str) -> Iterator[Finding]:
    """Processes that do not know of one another, or not as many as Slurm has started."""
    found = launch_warning(environ, world_size, library)
    if found is not None:
        yield Finding(WRONG, found, "variables of the launcher", "as said")
        return
    tasks = tasks_of_step(environ)
    if tasks is not None and tasks != world_size:
        yield Finding(
            NOTE,
            f"MPI.COMM_WORLD has {world_size} ranks, and Slurm has started {tasks} tasks in this step",
            "SLURM_STEP_NUM_TASKS",
            "srun -n, or #SBATCH --ntasks, says how many there are",
        )


def nodes(machine: Machine) -> Iterator[Finding]:
    """Sources that differ about who shares a host."""
    real = machine.hosts_layout
    for source in machine.sources:
        if source.layout is not None and source.name == "MPI_Comm_split_type" and source.layout != real:
            yield Finding(
                WRONG,
                "two sources differ about who shares a host: identity and shared memory find "
                f"{real.describe()}, MPI {source.layout.describe()}",
                "boot id, /dev/shm and a token in it; MPI_Comm_split_type",
                "hpccoll goes by the former. Other libraries go by MPI's: another version of the launcher or "
                "of PMIx, or srun --mpi=pmix instead of pmi2, mostly mends it",
            )
    if not machine.shares_memory and max(real.counts) > 1:
        yield Finding(
            WRONG,
            "ranks of a host share no memory, and exchange data by messages",
            next((one.text for one in machine.sources if one.name == "identity and probe"), ""),
            "containers: share /dev/shm and the IPC namespace (docker --ipc=host; apptainer does it itself)",
        )


def host_names(survey: Survey) -> Iterator[Finding]:
    """Hosts of one name."""
    names = [host.name for host in survey.hosts]
    twice = sorted({name for name in names if name is not None and names.count(name) > 1})
    if twice:
        yield Finding(
            WRONG,
            f"{names.count(twice[0])} hosts are called {twice[0]}",
            "their boot ids, or their shared memory, differ",
            "give containers and virtual machines names of their own (docker --hostname): NCCL and MPI may "
            "take them for one host; NCCL_HOSTID=... keeps them apart for NCCL",
        )


def placement(machine: Machine) -> Iterator[Finding]:
    """Unequal hosts, and ranks that are dealt out in turn."""
    layout = machine.hosts_layout
    if layout.node_count == 1:
        yield Finding(ABSENT, "one host")
        return
    if not layout.is_uniform:
        yield Finding(
            NOTE,
            f"hosts hold different numbers of ranks: {layout.describe()}",
            "which ranks share a host",
            "plans over rails need equal hosts: #SBATCH --ntasks-per-node=N",
        )
    if not layout.is_contiguous:
        yield Finding(
            NOTE,
            f"ranks of one host are not neighbours: {layout.shortened()}",
            "which ranks share a host",
            "hpccoll does not mind; codes that exchange with the next rank do: srun --distribution=block",
        )


def devices(survey: Survey) -> Iterator[Finding]:
    """Ranks that share a GPU, or see only their own."""
    told = [process.visible_devices for process in survey.processes]
    visible = [one or () for one in told]
    if not any(visible):
        if any(host.gpus for host in survey.hosts) and any(one is not None for one in told):
            yield Finding(
                WRONG,
                "the hosts have GPUs, and no rank sees one",
                "CUDA's devices, and the driver's",
                "#SBATCH --gpus-per-node=N, and CUDA_VISIBLE_DEVICES not empty",
            )
        else:
            yield Finding(ABSENT, "no GPU, or no job was asked")
        return
    layout = Layout.from_keys(survey.host_of)
    chosen = choose_visible_devices(layout, visible)
    taken = [None if place is None else visible[rank][place] for rank, place in enumerate(chosen)]
    for uuid, ranks in shared_devices(layout, taken):
        yield Finding(
            WRONG,
            f"{format_ranks(ranks)} on {survey.hosts[survey.host_of[ranks[0]]].name} take one GPU, {uuid}",
            "CUDA's devices by UUID",
            "as many ranks on a host as it has GPUs: #SBATCH --ntasks-per-node=N --gpus-per-node=N",
        )
    for number, host in enumerate(survey.hosts):
        alone = [rank for rank in survey.ranks(number) if len(visible[rank]) == 1]
        if len(alone) > 1 and len(host.gpus) > 1 and len({visible[rank] for rank in alone}) > 1:
            yield Finding(
                NOTE,
                f"{format_ranks(alone)} on {host.name} see one GPU each, of {len(host.gpus)}: where a cgroup "
                "hides the others, NCCL cannot use NVLink or peer access between them",
                "CUDA's devices, and the driver's",
                "--gpus-per-node=N instead of --gpus-per-task=1 or --gpu-bind: hpccoll chooses (comm.device)",
            )


def cores(survey: Survey) -> Iterator[Finding]:
    """Ranks with fewer cores than they are, on one core, or on another NUMA node than their GPU."""
    if not survey.processes:
        yield Finding(ABSENT, "no job was asked")
        return
    for number, host in enumerate(survey.hosts):
        ranks = survey.ranks(number)
        allowed = {rank: survey.processes[rank].cpus for rank in ranks}
        if dark := [rank for rank in ranks if not allowed[rank]]:
            yield Finding(
                UNKNOWN, f"which cores {format_ranks(dark)} may use is not known", "/proc/self/status"
            )
        bound: dict[tuple[int, ...], list[int]] = {}
        for rank, cpus in allowed.items():
            if cpus:
                bound.setdefault(cpus, []).append(rank)
        for cpus, sharing in bound.items():
            if len(sharing) > len(cpus):
                few = (
                    f"core {cpus[0]} alone"
                    if len(cpus) == 1
                    else f"{len(cpus)} cores, {format_numbers(cpus)}"
                )
                word = WRONG if len(host.processor.cpus) >= len(ranks) else NOTE
                yield Finding(
                    word,
                    f"{format_ranks(sharing)} on {host.name} may use {few}",
                    "/proc/self/status, Cpus_allowed_list",
                    "srun --cpus-per-task=N --cpu-bind=cores; mpiexec -bind-to core; mpirun --bind-to core"
                    if word == WRONG
                    else "more ranks than cores: for tests only",
                )
        yield from _far_from_gpu(survey, number, ranks)


def _far_from_gpu(survey: Survey, number: int, ranks: Sequence[int]) -> Iterator[Finding]:
    host = survey.hosts[number]
    visible = [process.visible_devices or () for process in survey.processes]
    chosen = choose_visible_devices(Layout.from_keys(survey.host_of), visible)
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for rank in ranks:
        place = chosen[rank]
        gpu = None if place is None else by_uuid.get(visible[rank][place])
        node = None if gpu is None else numa_node(host, host.pci_device(gpu.address))
        near = next((one.cpus for one in host.numa_nodes if one.index == node), ())
        cpus = survey.processes[rank].cpus
        if gpu is not None and near and cpus and not set(cpus) & set(near):
            yield Finding(
                WRONG,
                f"rank {rank} on {host.name} runs on cores {format_numbers(cpus)}, its GPU {gpu.index} is at "
                f"NUMA node {node} (cores {format_numbers(near)})",
                "/proc/self/status; the PCIe tree",
                "srun --cpu-bind=... or --gpu-bind=closest; or bind to no core, and hpccoll chooses the GPU",
            )
