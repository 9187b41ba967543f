"""Free memory under the limits of control groups, with folders in place of real ones.

And the rate of its first use, with a clock in place of the real one.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from eigenkern.arrays import memory
from eigenkern.arrays.array import location_of

HOST = location_of(np.empty(0))
FREE = 10_000_000  # bytes, of the machine


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Return a function that sets the process's groups, with folders below a root.

    ``groups(lines, folders)``: lines of /proc/self/cgroup, and for each folder its
    files.
    """
    root, own = tmp_path / "cgroup", tmp_path / "self"
    root.mkdir()

    def make(lines, folders):
        own.write_text("".join(line + "\n" for line in lines))
        for folder, files in folders.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (root / folder / name).write_text(f"{content}\n")

    read_text = Path.read_text

    def redirected(path, *args, **options):
        path = own if path == Path("/proc/self/cgroup") else path
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", redirected)
    monkeypatch.setattr(memory, "_CGROUP", root)
    machine = SimpleNamespace(available=FREE, total=2 * FREE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    memory._of_host.cache_clear()
    yield make
    memory._of_host.cache_clear()


def v2(limit, used, inactive=None):
    """Return the files of a version 2 group."""
    stat = "anon 7" if inactive is None else f"anon 7\ninactive_file {inactive}\nfile 9"
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def v1(limit, used, inactive):
    """Return the files of a version 1 group."""
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": f"cache 1\ninactive_file {inactive}",
    }


def test_a_limit_counts_less_what_is_used(groups):
    groups(["0::/job"], {"job": v2(5000, 3000)})
    assert memory.available(*HOST) == 2000


def test_pages_of_files_that_can_be_dropped_are_free(groups):
    groups(["0::/job"], {"job": v2(5000, 3000, 400)})
    assert memory.available(*HOST) == 2400


def test_the_machine_may_have_less_than_the_limit_leaves(groups):
    groups(["0::/job"], {"job": v2(100 * FREE, 0, 0)})
    assert memory.available(*HOST) == FREE


@pytest.mark.parametrize(
    "of_user, of_job, expected",
    [
        (v2(5000, 3000), v2(9000, 100), 2000),  # the outer one has less left
        (v2(5000, 1000), v2(3000, 500), 2500),
        (v2("max", 4000), v2(3000, 500), 2500),
        (v2(5000, 4000, 100), v2("max", 500), 1100),
    ],
)
def test_the_narrowest_of_nested_limits_counts(of_user, of_job, expected, groups):
    groups(["0::/user/job"], {"user": of_user, "user/job": of_job})
    assert memory.available(*HOST) == expected


def test_the_root_is_a_group_too_and_nothing_above_it(groups, tmp_path):
    groups(["0::/job"], {"": v2(4000, 100), "job": v2("max", 100)})
    for name, content in v2(10, 0).items():  # next to the root
        (tmp_path / name).write_text(str(content))
    assert memory.available(*HOST) == 3900


def test_max_is_no_limit(groups):
    groups(["0::/job"], {"job": v2("max", 3000, 400)})
    assert memory.available(*HOST) == FREE


@pytest.mark.parametrize("missing", ["memory.max", "memory.current", "memory.stat"])
def test_a_group_without_a_file_is_no_limit(missing, groups):
    files = v2(5000, 3000, 0)
    del files[missing]
    groups(["0::/job"], {"job": files})
    assert memory.available(*HOST) == FREE


def test_a_folder_that_is_not_there_is_no_limit(groups):
    groups(["0::/elsewhere/job"], {"job": v2(5000, 3000)})
    assert memory.available(*HOST) == FREE


def test_more_in_use_than_allowed_leaves_nothing(groups):
    groups(["0::/job"], {"job": v2(5000, 6000, 200)})
    assert memory.available(*HOST) == 0


def test_version_1(groups):
    lines = ["12:cpu,cpuacct:/other", "5:memory:/docker/one", "1:name=systemd:/x"]
    folders = {"memory/docker/one": v1(5000, 3000, 250), "memory/other": v1(1, 0, 0)}
    groups(lines, folders)
    assert memory.available(*HOST) == 2250


def test_version_1_with_several_controllers_and_nested(groups):
    folders = {"memory/a": v1(2000, 500, 0), "memory/a/b": v1(2**63, 400, 0)}
    groups(["3:hugetlb,memory:/a/b"], folders)
    assert memory.available(*HOST) == 1500


def test_both_versions_side_by_side(groups):
    folders = {"memory/a": v1(5000, 500, 0), "b": v2(4000, 3000)}
    groups(["4:memory:/a", "0::/b"], folders)
    assert memory.available(*HOST) == 1000


def test_installed_is_what_the_machine_or_the_container_has(groups):
    groups(["0::/user/job"], {"user": v2(5000, 4900), "user/job": v2(7000, 0)})
    assert memory.installed(*HOST) == 5000
    memory._of_host.cache_clear()
    groups(["0::/job"], {"job": v2("max", 100)})
    assert memory.installed(*HOST) == 2 * FREE


def test_no_control_groups_at_all(groups):
    assert not (memory._CGROUP / "memory").exists()
    assert memory.available(*HOST) == FREE  # /proc/self/cgroup cannot be read
    assert memory.installed(*HOST) == 2 * FREE


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere such limits don't hold")
@pytest.mark.parametrize(
    "of_addresses, of_data, expected",
    [(-1, -1, np.inf), (5000, -1, 2000), (-1, 900, 800), (5000, 900, 800), (10, -1, 0)],
)
def test_limits_of_the_process(of_addresses, of_data, expected, groups, monkeypatch):
    limits = dict(zip(memory._LIMITED, (of_addresses, of_data), strict=True))
    monkeypatch.setattr(
        memory.resource, "getrlimit", lambda kind: (limits[kind], limits[kind])
    )
    used = SimpleNamespace(vms=3000, data=100)
    process = SimpleNamespace(memory_info=lambda: used)
    monkeypatch.setattr(psutil, "Process", lambda: process)
    assert memory.address_space() == expected
    assert memory.available(*HOST) == min(FREE, expected / 2)


def test_bytes_of_a_matrix():
    assert memory.n_bytes(np.zeros((3, 5), dtype=np.float32)) == 60
    assert memory.n_bytes(np.zeros((3, 5))) == 120


@pytest.fixture
def pieces(monkeypatch):
    """Return a function that sets the milliseconds of each piece, in turn."""

    def make(*milliseconds):
        ends = np.cumsum(np.array(milliseconds) / 1e3)
        times = [0.0, *np.column_stack([[0.0, *ends[:-1]], ends]).ravel()]
        clock = iter(times)
        monkeypatch.setattr(
            memory, "time", SimpleNamespace(perf_counter=lambda: next(clock))
        )
        monkeypatch.setattr(memory, "_measured_rate", [])
        return clock

    return make


PIECE = 2**23


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ([0.5, 0.5, 0.5], 24e9),  # 17 GB/s, rounded
        ([0.7, 0.4, 0.6], 24e9),
        ([0.5, 18.0, 18.0], 0.375e9),  # pages that were freed before, then new ones
        ([18.0, 0.5, 18.0], 24e9),  # interrupted
        ([4.0, 5.0, 6.0], 1.5e9),
    ],
)
def test_rate_of_the_first_use(pieces, milliseconds, expected):
    clock = pieces(*milliseconds)
    assert memory.touch_rate(3 * PIECE + 1) == expected
    assert list(clock) == []
    assert memory.touch_rate(1e9) == expected  # measured once


def test_the_measurement_of_the_first_use_ends(pieces):
    clock = pieces(20.0, 20.0, 20.0, 20.0)
    assert memory.touch_rate(4 * PIECE) == 0.375e9
    assert len(list(clock)) == 2  # the last piece was left out
