// Queue and fleet, and Service: pages for operators.
import { useEffect, useRef, useState } from "preact/hooks";
import { count, percent, seconds, usd } from "./format.js";
import { useData } from "./hooks.js";
import { Bar, Line, Notice, Page, Tile } from "./parts.jsx";

const MAX_READINGS = 600;
const PARTS = ["total", "wait", "load", "text", "denoise", "decode", "upload"];

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

const Table = ({ head, rows, empty, label }) => rows.length === 0 ? <p class="note">{empty}</p> : (
  <div class="scroll" tabIndex={0} role="region" aria-label={label}><table><thead><tr>{head.map((name) => <th scope="col">{name}</th>)}</tr></thead><tbody>{rows.map((row) => <tr>{row.map((cell) => <td>{cell}</td>)}</tr>)}</tbody></table></div>
);

export function Queue() {
  const { data: queue, error } = useData("/v1/queue", 2);
  const { data: workers } = useData("/v1/workers", 2);
  const [depth, setDepth] = useState();
  useEffect(() => { if (queue) setDepth([queue.queued]); }, [queue]);
  const readings = useReadings(depth);
  return (
    <Page title="Queue and fleet">
      <Notice problem={error} />
      {queue && <>
        <div class="tiles">
          <Tile label="Queued" value={count(queue.queued)} metric="filmgate_jobs" />
          <Tile label="Running" value={count(queue.running)} metric="filmgate_jobs" />
          <Tile label="Backlog" value={seconds(queue.backlog_seconds)} note="GPU time" metric="filmgate_backlog_seconds" />
          <Tile label="Longest wait" value={seconds(queue.oldest_queued_seconds)} metric="filmgate_oldest_queued_seconds" />
        </div>
        <section class="card"><h2>Queued jobs, while this page is open</h2><Line series={readings} label="Queued jobs" /></section>
      </>}
      <section class="card"><h2>Workers</h2>
        {workers && <Table label="Workers" empty="No worker is alive. Start one with `filmgate worker`." head={["Worker", "Device", "Models", "Route", "Running"]}
          rows={workers.data.map((worker) => [<code>{worker.id}</code>, worker.device || "–", worker.models.join(", "), worker.route, `${worker.running} of ${worker.capacity}`])} />}
      </section>
      {queue && <>
        <section class="card"><h2>By tenant and model</h2><Table label="Jobs by tenant and model" empty="Nothing waits and nothing runs." head={["Tenant", "Model", "Route", "State", "Jobs", "GPU time"]}
          rows={queue.counts.map((each) => [each.tenant, each.model, each.route, each.state, count(each.jobs), seconds(each.gpu_seconds)])} /></section>
        <section class="card"><h2>Next jobs</h2><Table label="Next jobs" empty="The queue is empty." head={["Position", "Video", "Tenant", "Model", "Waiting", "Starts in", "Ready in"]}
          rows={queue.data.map((job) => [job.position, <code>{job.id.slice(0, 14)}…</code>, job.tenant, job.model, seconds(job.waiting_seconds), seconds(job.starts_in_seconds), seconds(job.ready_in_seconds)])} /></section>
      </>}
    </Page>
  );
}

// The quantile of a histogram, interpolated within its bucket.
export function quantile(counts, bounds, share) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  let below = 0;
  for (let index = 0; index < counts.length; index += 1) {
    if (counts[index] && below + counts[index] >= share * total) {
      if (index === bounds.length) return bounds.at(-1);
      const low = index ? bounds[index - 1] : 0;
      return low + (bounds[index] - low) * (share * total - below) / counts[index];
    }
    below += counts[index];
  }
  return null;
}

const within = (each, bounds, limit) => each.counts.reduce((sum, jobs, index) => sum + (index < bounds.length && bounds[index] <= limit ? jobs : 0), 0);

function grouped(rows, key, value) {
  const sums = new Map();
  for (const row of rows) sums.set(key(row), (sums.get(key(row)) || 0) + value(row));
  return [...sums].sort((a, b) => b[1] - a[1]);
}

export function Service() {
  const { data, error } = useData("/v1/statistics", 5);
  if (!data) return <Page title="Service"><Notice problem={error} /></Page>;
  const done = data.ended.filter((each) => each.state === "completed");
  const failed = data.ended.filter((each) => each.state === "failed");
  const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] || 0), 0);
  const totals = data.durations.filter((each) => each.kind === "total");
  const jobs = totals.reduce((total, each) => total + each.counts.reduce((a, b) => a + b, 0), 0);
  const inTime = totals.reduce((total, each) => total + within(each, data.bounds, data.slo_seconds), 0);
  const most = Math.max(...failed.map((each) => each.jobs), 1);
  const hasPrice = done.some((each) => each.usd !== null);
  return (
    <Page title="Service">
      <Notice problem={error} />
      <div class="tiles">
        <Tile label={`Ready within ${seconds(data.slo_seconds)}`} value={jobs ? percent(inTime / jobs) : "–"} note={`${count(jobs)} clips`} metric="filmgate_job_seconds" />
        <Tile label="Completed" value={count(sum(done, "jobs"))} metric="filmgate_jobs_ended_total" />
        <Tile label="Failed" value={count(sum(failed.filter((each) => each.reason !== "cancelled"), "jobs"))} metric="filmgate_jobs_ended_total" />
        <Tile label="GPU time" value={seconds(sum(done, "gpu_seconds"))} note={hasPrice ? usd(sum(done, "usd")) : null} metric="filmgate_gpu_seconds_total" />
      </div>
      <section class="card"><h2>Latency by model</h2><Table label="Seconds by model" empty="No clip is finished yet." head={["Model", "Part", "Clips", "p50", "p90", "p99", "Mean"]}
        rows={[...data.durations].sort((a, b) => PARTS.indexOf(a.kind) - PARTS.indexOf(b.kind)).map((each) => { const jobs = each.counts.reduce((a, b) => a + b, 0); return [each.model, each.kind, count(jobs), ...[0.5, 0.9, 0.99].map((share) => seconds(quantile(each.counts, data.bounds, share))), seconds(each.seconds / jobs)]; })} /></section>
      <div class="columns">
        <section class="card"><h2>GPU time by tenant</h2><Table label="GPU time by tenant" empty="No clip is finished yet." head={["Tenant", "GPU time", ...(hasPrice ? ["Cost"] : [])]}
          rows={grouped(done, (each) => each.tenant, (each) => each.gpu_seconds).map(([tenant, value]) => [tenant, seconds(value), ...(hasPrice ? [usd(sum(done.filter((each) => each.tenant === tenant), "usd"))] : [])])} /></section>
        <section class="card"><h2>Failures by reason</h2>{failed.length === 0 ? <p class="note">No job has failed.</p> : <ul class="bars">{grouped(failed, (each) => each.reason || "unknown", (each) => each.jobs).map(([reason, number]) => <li><span>{reason}</span><Bar value={Math.min(100 * number / most, 100)} label={reason} /><span>{count(number)}</span></li>)}</ul>}</section>
      </div>
      <section class="card"><h2>Tenants</h2><Table label="Tenants" empty="There are no tenants." head={["Tenant", "Scopes", "Weight", "GPU time today", "Limit per day", "Max queued", "Max running"]}
        rows={data.tenants.map((each) => [each.is_enabled ? each.tenant : `${each.tenant} (disabled)`, each.scopes.join(", "), each.weight, seconds(each.gpu_seconds_today), each.max_gpu_seconds_per_day === null ? "none" : seconds(each.max_gpu_seconds_per_day), each.max_queued ?? "none", each.max_running ?? "none"])} /></section>
    </Page>
  );
}
