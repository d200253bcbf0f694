from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtfuse.core import cores


def test_version_2_limits_come_from_the_group_and_all_above_it() -> None:
    assert cores.parse_cgroups("0::/user.slice/run.scope\n") == (
        "user.slice/run.scope",
        "user.slice",
        ".",
    )


def test_version_1_limits_come_from_the_cpu_controller_alone() -> None:
    text = "11:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n2:cpuset:/\n"
    assert cores.parse_cgroups(text) == ("cpu/docker/ab", "cpu/docker", "cpu")


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000", None), ("150000 100000", 1.5), ("-1 100000", None), ("50000\n 100000\n", 0.5)],
)
def test_a_quota_is_in_cores(text: str, quota: float | None) -> None:
    assert cores.parse_quota(text) == quota


def test_quotas_of_both_versions_are_read_and_missing_groups_skipped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/cpu.max").write_text("300000 100000\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cores.quotas(tmp_path, ("a/gone", "a", ".", "cpu")) == (3.0, 0.5)


@pytest.mark.parametrize(
    ("affinity", "limits", "whole"),
    [(8, (), 8), (8, (4.0, 2.5), 2), (2, (16.0,), 2), (4, (0.5,), 1)],
)
def test_cores_are_whole_and_at_least_one(
    affinity: int, limits: tuple[float, ...], whole: int
) -> None:
    assert cores.whole_cores(affinity, limits) == whole


def test_workers_share_the_cores_and_each_has_a_thread() -> None:
    assert 1 <= cores.usable_cores() <= len(os.sched_getaffinity(0))
    assert cores.threads_per_worker(1) == cores.usable_cores()
    assert cores.threads_per_worker(10_000) == 1
