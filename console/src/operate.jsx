// Queue and fleet: what waits, what runs, and where.
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "./api.js";
import { Chart } from "./charts.jsx";
import { count, gib, percent, seconds } from "./format.js";
import { useData } from "./hooks.js";
import { ConfirmButton, Loading, Metric, Notice, Page, Table, Tile } from "./parts.jsx";

const isNumber = (value) => typeof value === "number";
const MAX_READINGS = 300;

// Readings of a value in this tab, bounded.
function useReadings(value) {
  const readings = useRef([]);
  const [, redraw] = useState(0);
  useEffect(() => {
    if (value === undefined) return;
    readings.current = [...readings.current, [Date.now() / 1000, value[0]]].slice(-MAX_READINGS);
    redraw((number) => number + 1);
  }, [value]);
  return readings.current;
}

export function Queue() {
  const { data: queue, error, reload: reloadQueue } = useData("/v1/queue", 2);
  const { data: workers, reload: reloadWorkers } = useData("/v1/workers", 2);
  const [problem, setProblem] = useState(null);
  const act = (path, reload) => async () => {
    try {
      await post(path);
      setProblem(null);
      reload();
    } catch (found) {
      setProblem(found);
    }
  };
  const health = ({ gpu, speed }) =>
    !gpu ? "–" : !gpu.is_healthy ? "unhealthy" : speed < 1 ? `${percent(speed)} speed: heat` : "healthy";
  const heat = ({ gpu }) => (isNumber(gpu?.temperature_celsius) ? `${Math.round(gpu.temperature_celsius)} °C` : "–");
  const memory = ({ gpu }) =>
    !isNumber(gpu?.memory_used_bytes)
      ? "–"
      : isNumber(gpu.memory_total_bytes)
        ? `${gib(gpu.memory_used_bytes)} of ${gib(gpu.memory_total_bytes)}`
        : gib(gpu.memory_used_bytes);
  const state = (worker) => (worker.is_draining ? "draining" : worker.running ? "rendering" : "idle");
  // A GPU worker prepares its next job while it renders.
  const running = ({ running: jobs, capacity }) =>
    `${Math.min(jobs, capacity)} of ${capacity}${jobs > capacity ? `, ${jobs - capacity} prepared` : ""}`;
  const [depth, setDepth] = useState();
  useEffect(() => {
    if (queue) setDepth([queue.queued]);
  }, [queue]);
  const readings = useReadings(depth);
  return (
    <Page title="Queue and fleet">
      <Notice problem={problem || error} />
      {!queue && !error && <Loading />}
      {queue && (
        <>
          <div class="tiles">
            <Tile label="Queued" value={count(queue.queued)} metric="filmgate_jobs" />
            <Tile label="Running" value={count(queue.running)} metric="filmgate_jobs" />
            <Tile
              label="Backlog"
              value={seconds(queue.backlog_seconds)}
              note="GPU time"
              metric="filmgate_backlog_seconds"
            />
            <Tile
              label="Longest wait"
              value={seconds(queue.oldest_queued_seconds)}
              metric="filmgate_oldest_queued_seconds"
            />
          </div>
          <section class="card">
            <h2>Queued jobs, while this page is open</h2>
            <Chart
              times={readings.map(([at]) => at)}
              series={[{ name: "Queued", values: readings.map(([, value]) => value) }]}
              label="Queued jobs"
              format={count}
              empty=""
            />
            <Metric name="filmgate_jobs" />
          </section>
        </>
      )}
      <section class="card">
        <h2>Workers</h2>
        {workers && (
          <Table
            label="Workers"
            empty="No worker is alive. Start one with `filmgate worker`."
            head={[
              "Worker",
              "Device",
              "Models",
              "Route",
              "Temperature",
              "Memory",
              "Health",
              "State",
              "Running",
              <span class="quiet">Actions</span>,
            ]}
            rows={workers.data.map((worker) => [
              <code>{worker.id}</code>,
              worker.device || "–",
              worker.models.join(", "),
              worker.route,
              heat(worker),
              memory(worker),
              health(worker),
              state(worker),
              running(worker),
              worker.is_draining ? null : (
                <ConfirmButton
                  label="Drain"
                  confirmLabel="Confirm: finish the current job, then take no more"
                  aria-label={`Drain ${worker.id}`}
                  onConfirm={act(`/v1/workers/${encodeURIComponent(worker.id)}/drain`, reloadWorkers)}
                />
              ),
            ])}
          />
        )}
      </section>
      {queue && (
        <>
          <section class="card">
            <h2>By tenant and model</h2>
            <Table
              label="Jobs by tenant and model"
              empty="No queued or running jobs."
              head={["Tenant", "Model", "Route", "State", "Jobs", "GPU time"]}
              rows={queue.counts.map((each) => [
                each.tenant,
                each.model,
                each.route,
                each.state,
                count(each.jobs),
                seconds(each.gpu_seconds),
              ])}
            />
          </section>
          <section class="card">
            <h2>Next jobs</h2>
            <Table
              label="Next jobs"
              empty="The queue is empty."
              head={[
                "Position",
                "Video",
                "Tenant",
                "Model",
                "Waiting",
                "Starts in",
                "Ready in",
                <span class="quiet">Actions</span>,
              ]}
              rows={queue.data.map((job) => [
                job.position,
                <code>{job.id.slice(0, 14)}…</code>,
                job.tenant,
                job.model,
                seconds(job.waiting_seconds),
                seconds(job.starts_in_seconds),
                seconds(job.ready_in_seconds),
                <ConfirmButton
                  label="Cancel"
                  confirmLabel="Cancel this job"
                  aria-label={`Cancel ${job.id}`}
                  onConfirm={act(`/v1/tenants/${encodeURIComponent(job.tenant)}/videos/${job.id}/cancel`, reloadQueue)}
                />,
              ])}
            />
          </section>
        </>
      )}
    </Page>
  );
}
