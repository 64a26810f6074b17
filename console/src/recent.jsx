// Service in the past hour, day or week: attainment, latency, throughput, errors and cost.
import { Chart } from "./charts.jsx";
import { count, percent, seconds, usd } from "./format.js";
import { useData } from "./hooks.js";
import { Loading, Metric, Notice, Table, Tile } from "./parts.jsx";
import { Failures, sum } from "./usage.jsx";

const DAY = 86400;
// How long each range is, how wide its buckets are, how often it is read again, and how its buckets are called.
export const RANGES = {
  hour: { label: "Past hour", seconds: 3600, width: 300, bucket: "5m", every: 10, per: "5 minutes" },
  day: { label: "Past day", seconds: DAY, width: 3600, bucket: "1h", every: 30, per: "hour" },
  week: { label: "Past week", seconds: 7 * DAY, width: 3600, bucket: "1h", every: 60, per: "hour" },
};
const MAX_STACKED = 4;

// Busy and idle seconds of our GPUs: the share that was busy, and how long a gap between two clips was.
const busyShare = (rows) => {
  const busy = sum(rows, "busy_seconds"),
    all = busy + sum(rows, "idle_seconds");
  return all > 0 ? busy / all : null;
};
const meanGap = (rows) => (sum(rows, "gaps") ? sum(rows, "gap_seconds") / sum(rows, "gaps") : null);
const share = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);
const gap = (value) => (value !== null && value < 1 ? `${Math.round(1000 * value)} ms` : seconds(value));

const byName = (rows, names) =>
  [...rows].sort((a, b) => names.map((name) => a[name].localeCompare(b[name])).find((order) => order) || 0);

function useRange(range) {
  const { width, every, bucket, seconds: length } = RANGES[range];
  // Whole buckets that end now: the address changes once per bucket, not with every reading.
  const start = (Math.floor(Date.now() / 1000 / width) + 1) * width - length;
  const read = (bucketWidth, groupBy, from = start) =>
    useData(`/v1/usage/videos?start_time=${from}&bucket_width=${bucketWidth}&group_by=${groupBy}`, every);
  const buckets = read(bucket, ""),
    models = read("all", "model,route"),
    reasons = read("all", "reason");
  const days = read("1d", "tenant,model", Math.floor(start / DAY) * DAY);
  const devices = useData(`/v1/usage/workers?start_time=${start}&bucket_width=${bucket}`, every);
  const all = [buckets, models, reasons, days, devices];
  const error = all.find((each) => each.error)?.error;
  const isReady = all.every((each) => each.data);
  return {
    error,
    isReady,
    devices: devices.data?.data,
    buckets: buckets.data?.data,
    models: models.data?.data[0].results,
    reasons: reasons.data?.data[0].results,
    days: days.data?.data,
  };
}

function Tiles({ models, used, length }) {
  const completed = sum(models, "completed"),
    judged = sum(models, "judged"),
    late = sum(models, "late");
  const hasPrice = models.some((row) => row.usd !== null);
  const gaps = sum(used, "gaps");
  return (
    <div class="tiles">
      <Tile
        label="On time"
        value={judged ? percent(1 - late / judged) : "–"}
        note={`${count(late)} of ${count(judged)} late`}
        metric="filmgate_slo_jobs_total"
      />
      <Tile
        label="Completed"
        value={count(completed)}
        note={`${count(completed / (length / 3600))} per hour`}
        metric="filmgate_jobs_ended_total"
      />
      <Tile
        label="Failed"
        value={count(sum(models, "failed"))}
        note={`${count(sum(models, "cancelled"))} cancelled`}
        metric="filmgate_jobs_ended_total"
      />
      {hasPrice ? (
        <Tile
          label="Cost"
          value={usd(sum(models, "usd"))}
          note={`${seconds(sum(models, "gpu_seconds"))} of GPU time`}
          metric="filmgate_cost_usd_total"
        />
      ) : (
        <Tile
          label="GPU time"
          value={seconds(sum(models, "gpu_seconds"))}
          note={completed ? `${seconds(sum(models, "gpu_seconds") / completed)} per clip` : "no clips"}
          metric="filmgate_gpu_seconds_total"
        />
      )}
      <Tile
        label="GPUs busy"
        value={busyShare(used) === null ? "–" : percent(busyShare(used))}
        note={used.length ? `${seconds(sum(used, "idle_seconds"))} idle` : "no worker was ready"}
        metric="filmgate_worker_busy_seconds_total"
      />
      <Tile
        label="Idle between clips"
        value={gap(meanGap(used))}
        note={gaps ? `${count(gaps)} times a job was waiting` : "no job was waiting"}
        metric="filmgate_worker_gap_seconds"
      />
    </div>
  );
}

function Charts({ buckets, devices, reasons, range }) {
  const { width, per } = RANGES[range];
  const times = buckets.map((bucket) => bucket.start_time);
  const deviceTimes = devices.map((bucket) => bucket.start_time);
  const values = (pick) => buckets.map(({ results }) => (results[0] ? pick(results[0]) : null));
  const latency = (name) => ({ name, values: values((row) => row[`${name}_seconds`]) });
  const judged = sum(
    buckets.flatMap((bucket) => bucket.results),
    "judged",
  );
  const hasWorker = devices.some((bucket) => bucket.results.length);
  return (
    <div class="columns is-pairs">
      <section class="card">
        <h2>Clips per {per}</h2>
        <Chart
          isBars
          width={width}
          times={times}
          label="Clips"
          format={count}
          empty="No job has finished."
          series={[
            { name: "completed", values: values((row) => row.completed), tone: "good" },
            { name: "failed", values: values((row) => row.failed), tone: "bad" },
          ]}
        />
        <Metric name="filmgate_jobs_ended_total" />
      </section>
      <section class="card">
        <h2>Seconds until a clip is ready</h2>
        <Chart
          width={width}
          times={times}
          label="Latency"
          format={seconds}
          empty="No clip was completed."
          series={[latency("p50"), latency("p95"), latency("p99")]}
        />
        <Metric name="filmgate_job_seconds" />
      </section>
      <section class="card">
        <h2>Clips on time</h2>
        <Chart
          width={width}
          times={times}
          label="Clips on time"
          format={share}
          max={1}
          empty={judged ? "" : "No clip was completed."}
          series={[{ name: "on time", values: values((row) => (row.judged ? 1 - row.late / row.judged : null)) }]}
        />
        <Metric name="filmgate_slo_jobs_total" />
      </section>
      <Failures rows={reasons.map((row) => ({ reason: row.reason, jobs: row.failed }))} />
      <section class="card">
        <h2>GPUs busy</h2>
        <Chart
          width={width}
          times={deviceTimes}
          label="GPUs busy"
          format={share}
          max={1}
          empty={hasWorker ? "" : "No worker was ready."}
          series={[{ name: "busy", values: devices.map((bucket) => busyShare(bucket.results)) }]}
        />
        <Metric name="filmgate_worker_busy_seconds_total" />
      </section>
      <section class="card">
        <h2>Idle between clips while a job waits</h2>
        <Chart
          width={width}
          times={deviceTimes}
          label="Idle between clips"
          format={gap}
          empty="No job was waiting for a GPU."
          series={[{ name: "mean", values: devices.map((bucket) => meanGap(bucket.results)) }]}
        />
        <Metric name="filmgate_worker_gap_seconds" />
      </section>
    </div>
  );
}

function Latencies({ models }) {
  return (
    <section class="card">
      <h2>Latency by model and route</h2>
      <Table
        label="Seconds by model and route"
        empty="No job has finished."
        numbers={2}
        head={["Model", "Route", "Clips", "p50", "p95", "p99", "Mean", "On time"]}
        rows={byName(models, ["model", "route"]).map((row) => [
          row.model,
          row.route,
          count(row.completed),
          ...["p50", "p95", "p99", "mean"].map((name) => seconds(row[`${name}_seconds`])),
          row.judged ? percent(1 - row.late / row.judged) : "–",
        ])}
      />
      <Metric name="filmgate_job_seconds" />
    </section>
  );
}

// Cost, or GPU time where there is no price, by day: the largest tenants and the others.
function CostChart({ days, hasPrice, name }) {
  const [field, format] = hasPrice ? ["usd", usd] : ["gpu_seconds", seconds];
  const rows = days.flatMap((bucket) => bucket.results);
  const totals = new Map();
  for (const row of rows) totals.set(row[name], (totals.get(row[name]) || 0) + (row[field] || 0));
  const names = [...totals].sort((a, b) => b[1] - a[1]).map(([key]) => key);
  const shown = names.length > MAX_STACKED ? names.slice(0, MAX_STACKED - 1) : names;
  const valuesOf = (isOf) => days.map((bucket) => sum(bucket.results.filter(isOf), field));
  const series = shown.map((key) => ({ name: key, values: valuesOf((row) => row[name] === key) }));
  if (shown.length < names.length)
    series.push({ name: "others", values: valuesOf((row) => !shown.includes(row[name])) });
  return (
    <Chart
      isBars
      width={DAY}
      zone="UTC"
      times={days.map((bucket) => bucket.start_time)}
      series={series}
      label={`${hasPrice ? "Cost" : "GPU time"} by ${name} and day`}
      format={format}
      empty="No clip was completed."
    />
  );
}

function Costs({ days, hasPrice }) {
  const costs = byName(
    days.flatMap((bucket) =>
      bucket.results.map((row) => ({ ...row, day: new Date(bucket.start_time * 1000).toISOString().slice(0, 10) })),
    ),
    ["tenant", "model"],
  ).sort((a, b) => b.day.localeCompare(a.day));
  return (
    <>
      <div class="columns">
        <section class="card">
          <h2>{hasPrice ? "Cost" : "GPU time"} by tenant and day (UTC)</h2>
          <CostChart days={days} hasPrice={hasPrice} name="tenant" />
          <Metric name={hasPrice ? "filmgate_cost_usd_total" : "filmgate_gpu_seconds_total"} />
        </section>
        <section class="card">
          <h2>{hasPrice ? "Cost" : "GPU time"} by model and day (UTC)</h2>
          <CostChart days={days} hasPrice={hasPrice} name="model" />
          <Metric name={hasPrice ? "filmgate_cost_usd_total" : "filmgate_gpu_seconds_total"} />
        </section>
      </div>
      <section class="card is-tall">
        <h2>By tenant, model and day</h2>
        <Table
          label="GPU time by tenant and model"
          empty="No job has finished."
          numbers={3}
          head={["Day", "Tenant", "Model", "Clips", "Failed", "GPU time", ...(hasPrice ? ["Cost"] : [])]}
          rows={costs.map((row) => [
            row.day,
            row.tenant,
            row.model,
            count(row.completed),
            count(row.failed),
            seconds(row.gpu_seconds),
            ...(hasPrice ? [usd(row.usd)] : []),
          ])}
        />
        <Metric name="filmgate_gpu_seconds_total" />
      </section>
    </>
  );
}

export function Recent({ range }) {
  const { error, isReady, buckets, models, reasons, days, devices } = useRange(range);
  if (!isReady) return error ? <Notice problem={error} /> : <Loading />;
  const used = devices.flatMap((bucket) => bucket.results);
  return (
    <>
      <Notice problem={error} />
      <Tiles models={models} used={used} length={RANGES[range].seconds} />
      <Charts buckets={buckets} devices={devices} reasons={reasons} range={range} />
      <Latencies models={models} />
      <Costs days={days} hasPrice={models.some((row) => row.usd !== null)} />
    </>
  );
}
