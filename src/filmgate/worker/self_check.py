"""Checks that the weights in memory and the clips of a device have not changed."""

from filmgate.errors import DecodeError, DeviceDrifted
from filmgate.pipeline.canary import describe_setup, make_golden, measure_drift
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.weight_sums import WeightSums, find_changes, sum_weights
from filmgate.pipeline.render import Renderer
from filmgate.telemetry.logs import Log
from filmgate.worker.golden import GoldenClips
from filmgate.worker.metrics import WorkerMetrics

log = Log("canary")


class SelfCheck:
    """Compares the weights with their sums at load time, and a canary clip with the golden clip."""

    def __init__(self, goldens: GoldenClips, metrics: WorkerMetrics) -> None:
        self._goldens = goldens
        self._metrics = metrics
        self._sums: dict[str, WeightSums] = {}

    def remember(self, name: str, model: VideoModel) -> None:
        """Take the sums of a model that was just loaded."""
        self._sums[name] = sum_weights(model.pipe)

    def run(self, name: str, version: str, model: VideoModel, renderer: Renderer) -> None:
        """Check one loaded model. Raises DeviceDrifted, and DecodeError for an incomplete canary."""
        renderer.use_adapters(None)  # the last job may have had one
        if changed := find_changes(self._sums[name], sum_weights(model.pipe)):
            self._metrics.canary_checked(name, None, has_passed=False)
            raise _drifted(name, f"the weights in memory have changed: {', '.join(changed)}")
        setup = describe_setup(model)
        golden = self._goldens.find(version, setup)
        if golden is None:
            golden = self._goldens.keep(version, setup, make_golden(model, renderer))
        difference = measure_drift(golden, model, renderer)
        has_passed = difference <= golden.tolerance
        self._metrics.canary_checked(name, difference, has_passed=has_passed)
        if not has_passed:
            limit = f"the limit is {golden.tolerance:.1f}"
            raise _drifted(
                name, f"the canary differs from the golden clip by {difference:.1f} levels; {limit}"
            )
        log.info("the canary check passed", model=name, relative_error=round(difference / 255, 6))

    def run_again(self, name: str, version: str, model: VideoModel, renderer: Renderer) -> None:
        """Check a model between jobs: any wrong clip means that something has changed."""
        try:
            self.run(name, version, model, renderer)
        except DecodeError as exc:
            self._metrics.canary_checked(name, None, has_passed=False)
            raise _drifted(name, str(exc)) from exc


def _drifted(name: str, reason: str) -> DeviceDrifted:
    return DeviceDrifted(
        f"{name}: {reason}. A restart loads the weights again; if that does not help, replace the GPU"
    )
