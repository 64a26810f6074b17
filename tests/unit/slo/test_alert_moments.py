"""When an alert begins and ends: one failure, a start, and a process that does not answer."""

import pytest

from filmgate.slo.gpu_alerts import GpuMetrics
from filmgate.slo.rules import rules_file
from tests.prometheus import check_histories, firing

RULES = rules_file()
GPU = '{instance="node-1:9464",gpu="GPU-1",GPU_I_ID="3"}'
JOBS = 'filmgate_jobs{state="queued",route="gpu",model="wan",tenant="acme"}'


def test_one_failed_checkpoint_pages_nobody(tmp_path):
    """`increase` extrapolates to the ends of its window: of one failure it makes a little more than one."""
    history = {'filmgate_task_failures_total{task="audit checkpoint"}': "5x20 6x40"}
    checks = [("41m", firing("FilmgateAuditCheckpointFailing"), 0)]
    code, output = check_histories(tmp_path, RULES, [("50s", history, checks)])
    assert code == 0, output


@pytest.mark.parametrize(
    ("source", "series"),
    [
        (GpuMetrics.FILMGATE, "filmgate_gpu_utilization_ratio"),
        (GpuMetrics.DCGM, "DCGM_FI_DEV_GPU_UTIL"),
        (GpuMetrics.DCGM, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    ],
)
def test_a_gpu_is_idle_only_after_five_minutes(tmp_path, source, series):
    """A worker that was started because jobs wait loads its model for the first minutes."""
    history = {f"{series}{GPU}": "_x20 0x40", JOBS: "3x60"}
    checks = [("24m", firing("FilmgateGpuIdle"), 0), ("28m", firing("FilmgateGpuIdle"), 1)]
    code, output = check_histories(tmp_path, rules_file(gpu_metrics=source), [("1m", history, checks)])
    assert code == 0, output


@pytest.mark.parametrize(("other", "fires"), [("stale", 1), ("0x60", 1), ("1x60", 0)])
def test_the_database_is_down_while_no_server_reports_it(tmp_path, other, fires):
    """A server may not run, or not answer a scrape in time because its database does not answer."""
    history = {'filmgate_queue_up{instance="a"}': "1x10 stale", 'filmgate_queue_up{instance="b"}': other}
    checks = [("5m", firing("FilmgateDatabaseDown"), 0), ("15m", firing("FilmgateDatabaseDown"), fires)]
    code, output = check_histories(tmp_path, RULES, [("1m", history, checks)])
    assert code == 0, output
