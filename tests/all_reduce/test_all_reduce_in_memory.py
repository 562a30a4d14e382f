import pytest

from tfdist.all_reduce.in_memory import in_one_process, sharing_memory

DEVICE = "/job:{}/replica:0/task:{}/device:{}"
CHIEF = DEVICE.format("chief", 0, "CPU:0")
CPUS = [DEVICE.format("worker", 1, f"CPU:{i}") for i in range(3)]
GPUS = [DEVICE.format("worker", 1, f"GPU:{i}") for i in range(2)]
OTHER = DEVICE.format("worker", 11, "CPU:0")


@pytest.mark.parametrize(
    ("devices", "groups", "is_one"),
    [
        ([], [], True),
        ([CHIEF], [[0]], True),
        (CPUS, [[0, 1, 2]], True),
        (GPUS, [[0], [1]], True),
        ([*GPUS, *CPUS], [[0], [1], [2, 3, 4]], True),
        ([CHIEF, CPUS[0], OTHER], [[0], [1], [2]], False),
        ([CPUS[2], CHIEF, CPUS[0], OTHER, CPUS[1]], [[0, 2, 4], [1], [3]], False),
        ([CPUS[0], CPUS[1].replace("CPU", "cpu")], [[0, 1]], True),
    ],
)
def test_memory_and_processes(devices, groups, is_one):
    assert sharing_memory(devices) == groups
    assert in_one_process(devices) == is_one
