"""Alerts on GPUs, with the metrics of the workers or of the DCGM exporter."""

from enum import StrEnum

from filmgate.slo.alerts import SERVICE_ALERTS, SLO_ALERTS, Alert, Severity
from filmgate.slo.recording import WAITING
from filmgate.telemetry import metrics as m

GPU_MEMORY_RATIO = 0.85
GPU_IDLE_RATIO = 0.3
GPU_CELSIUS = 83
POWER_RATIO = 0.98
_THERMAL = "sw_thermal|hw_thermal|power_brake|hw_slowdown"
# The same reasons as bits of NVML and DCGM: hw_slowdown, sw_thermal, hw_thermal, power_brake.
_THERMAL_BITS = (0x8, 0x20, 0x40, 0x80)
_JOBS_WAIT = f" and on () min_over_time({WAITING}[5m]) > 0"


class GpuMetrics(StrEnum):
    """Who exports the metrics of the GPUs."""

    FILMGATE = "filmgate"
    DCGM = "dcgm"


_FILMGATE = {
    "FilmgateGpuMemoryHigh": f"{m.GPU_MEMORY_USED.name} / {m.GPU_MEMORY_TOTAL.name} > {GPU_MEMORY_RATIO}",
    # A worker that loads its first model is not idle: its GPU has been watched for 5 minutes.
    "FilmgateGpuIdle": (
        f"avg_over_time({m.GPU_UTILIZATION.name}[5m]) < {GPU_IDLE_RATIO}{_JOBS_WAIT}"
        f" and {m.GPU_UTILIZATION.name} offset 5m"
    ),
    "FilmgateGpuHot": f"{m.GPU_TEMPERATURE.name} >= {GPU_CELSIUS}",
    "FilmgateGpuPowerLimit": (
        f"avg_over_time({m.GPU_POWER.name}[5m]) / {m.GPU_POWER_LIMIT.name} > {POWER_RATIO}"
    ),
    "FilmgateGpuThrottled": (
        f'max by (instance, gpu) ({m.GPU_CLOCK_EVENT.name}{{reason=~"{_THERMAL}"}}) == 1'
    ),
    "FilmgateGpuDoubleBitError": f'{m.GPU_ECC_ERRORS.name}{{kind="double_bit",counter="volatile"}} > 0',
    "FilmgateGpuRemapFailure": f"{m.GPU_REMAP_FAILURE.name} == 1",
    # A counter that appears with its first event has not increased yet.
    "FilmgateGpuXid": (
        f"increase({m.GPU_XID_ERRORS.name}[10m]) > 0"
        f" or ({m.GPU_XID_ERRORS.name} unless {m.GPU_XID_ERRORS.name} offset 10m) > 0"
    ),
}

_USED, _FREE, _BUSY = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL"
# The exporter has no utilisation of MIG devices, which have a GPU_I_ID, but the share of busy cycles.
_MIG_BUSY = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""}'
_REASONS, _XID = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_XID_ERRORS"
_SLOW = " + ".join(f"floor({_REASONS} / {bit}) % 2" for bit in _THERMAL_BITS)
_DCGM = {
    "FilmgateGpuMemoryHigh": f"{_USED} / ({_USED} + {_FREE}) > {GPU_MEMORY_RATIO}",
    "FilmgateGpuIdle": (
        f"(avg_over_time({_BUSY}[5m]) < {100 * GPU_IDLE_RATIO:g} and {_BUSY} offset 5m"
        f" or avg_over_time({_MIG_BUSY}[5m]) < {GPU_IDLE_RATIO} and {_MIG_BUSY} offset 5m){_JOBS_WAIT}"
    ),
    "FilmgateGpuHot": f"DCGM_FI_DEV_GPU_TEMP >= {GPU_CELSIUS}",
    "FilmgateGpuPowerLimit": (
        f"avg_over_time(DCGM_FI_DEV_POWER_USAGE[5m]) / DCGM_FI_DEV_ENFORCED_POWER_LIMIT > {POWER_RATIO}"
    ),
    "FilmgateGpuThrottled": f"{_SLOW} > 0",
    "FilmgateGpuDoubleBitError": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL > 0",
    "FilmgateGpuRemapFailure": "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
    # A gauge of the last XID, 0 before the first: it keeps its value when the cause is gone.
    "FilmgateGpuXid": f"{_XID} > 0 and (changes({_XID}[10m]) > 0 or ({_XID} unless {_XID} offset 10m) > 0)",
}
_EXPRESSIONS = {GpuMetrics.FILMGATE: _FILMGATE, GpuMetrics.DCGM: _DCGM}


def all_alerts(gpu_metrics: GpuMetrics = GpuMetrics.FILMGATE) -> tuple[Alert, ...]:
    """Every alert. Those on GPUs use these metrics."""
    return (*SLO_ALERTS, *SERVICE_ALERTS, *gpu_alerts(gpu_metrics))


def gpu_alerts(gpu_metrics: GpuMetrics) -> tuple[Alert, ...]:
    """The alerts on GPUs. They are the same for both sources."""

    def alert(name: str, severity: Severity, summary: str, hold: str = "0s") -> Alert:
        return Alert(name, _EXPRESSIONS[gpu_metrics][name], severity, summary, hold)

    page, ticket = Severity.PAGE, Severity.TICKET
    return (
        alert("FilmgateGpuMemoryHigh", ticket, "More than 85 % of a GPU's memory is used.", "5m"),
        alert(
            "FilmgateGpuIdle", ticket, "A GPU was less than 30 % busy for 5 minutes while jobs were waiting."
        ),
        alert("FilmgateGpuHot", ticket, "The temperature of a GPU is at least 83 °C.", "2m"),
        alert("FilmgateGpuPowerLimit", ticket, "A GPU draws as much power as its limit allows.", "5m"),
        alert(
            "FilmgateGpuThrottled",
            ticket,
            "Heat or the hardware slows down the clocks of a GPU.",
            "2m",
        ),
        alert("FilmgateGpuDoubleBitError", page, "The memory of a GPU has errors that ECC cannot correct."),
        alert("FilmgateGpuRemapFailure", page, "A GPU could not remap a broken memory row: replace it."),
        alert("FilmgateGpuXid", ticket, "The driver reported an XID error of a GPU."),
    )
