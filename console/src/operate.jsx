// Queue and fleet, and Service: pages for operators.
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "./api.js";
import { count, gib, percent, seconds, usd } from "./format.js";
import { useData } from "./hooks.js";
import { Bar, Line, Notice, Page, SureButton, Table, Tile } from "./parts.jsx";

const isNumber = (value) => typeof value === "number";
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

export function Queue() {
  const { data: queue, error, reload: reloadQueue } = useData("/v1/queue", 2);
  const { data: workers, reload: reloadWorkers } = useData("/v1/workers", 2);
  const [problem, setProblem] = useState(null);
  const act = (path, reload) => async () => {
    try { await post(path); setProblem(null); reload(); } catch (found) { setProblem(found); }
  };
  const health = ({ gpu, speed }) => !gpu ? "–" : !gpu.is_healthy ? "broken" : speed < 1 ? `${percent(speed)} speed: heat` : "healthy";
  const heat = ({ gpu }) => isNumber(gpu?.temperature_celsius) ? `${Math.round(gpu.temperature_celsius)} °C` : "–";
  const memory = ({ gpu }) => !isNumber(gpu?.memory_used_bytes) ? "–" : isNumber(gpu.memory_total_bytes) ? `${gib(gpu.memory_used_bytes)} of ${gib(gpu.memory_total_bytes)}` : gib(gpu.memory_used_bytes);
  const state = (worker) => worker.is_draining ? "draining" : worker.running ? "rendering" : "idle";
  const [depth, setDepth] = useState();
  useEffect(() => { if (queue) setDepth([queue.queued]); }, [queue]);
  const readings = useReadings(depth);
  return (
    <Page title="Queue and fleet">
      <Notice problem={problem || error} />
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
        {workers && <Table label="Workers" empty="No worker is alive. Start one with `filmgate worker`." head={["Worker", "Device", "Models", "Route", "Temperature", "Memory", "Health", "State", "Running", <span class="quiet">Actions</span>]}
          rows={workers.data.map((worker) => [<code>{worker.id}</code>, worker.device || "–", worker.models.join(", "), worker.route, heat(worker), memory(worker), health(worker), state(worker), `${worker.running} of ${worker.capacity}`,
            worker.is_draining ? null : <SureButton label="Drain" sure="Drain: finish its job, lease no other" aria-label={`Drain ${worker.id}`} onSure={act(`/v1/workers/${encodeURIComponent(worker.id)}/drain`, reloadWorkers)} />])} />}
      </section>
      {queue && <>
        <section class="card"><h2>By tenant and model</h2><Table label="Jobs by tenant and model" empty="Nothing waits and nothing runs." head={["Tenant", "Model", "Route", "State", "Jobs", "GPU time"]}
          rows={queue.counts.map((each) => [each.tenant, each.model, each.route, each.state, count(each.jobs), seconds(each.gpu_seconds)])} /></section>
        <section class="card"><h2>Next jobs</h2><Table label="Next jobs" empty="The queue is empty." head={["Position", "Video", "Tenant", "Model", "Waiting", "Starts in", "Ready in", <span class="quiet">Actions</span>]}
          rows={queue.data.map((job) => [job.position, <code>{job.id.slice(0, 14)}…</code>, job.tenant, job.model, seconds(job.waiting_seconds), seconds(job.starts_in_seconds), seconds(job.ready_in_seconds),
            <SureButton label="Cancel" sure="Cancel this job" aria-label={`Cancel ${job.id}`} onSure={act(`/v1/tenants/${encodeURIComponent(job.tenant)}/videos/${job.id}/cancel`, reloadQueue)} />])} /></section>
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

// What happened after an earlier reading: all numbers of the statistics only grow.
export function since(now, base) {
  const same = (rows, row, names) => rows.find((each) => names.every((name) => each[name] === row[name]));
  const ended = now.ended.map((row) => {
    const old = same(base.ended, row, ["tenant", "route", "model", "state", "reason"]);
    return old ? { ...row, jobs: row.jobs - old.jobs, gpu_seconds: row.gpu_seconds - old.gpu_seconds, usd: row.usd === null ? null : row.usd - (old.usd || 0) } : row;
  }).filter((row) => row.jobs > 0);
  const durations = now.durations.map((row) => {
    const old = same(base.durations, row, ["kind", "model", "route"]);
    return old ? { ...row, counts: row.counts.map((jobs, index) => jobs - old.counts[index]), seconds: row.seconds - old.seconds } : row;
  }).filter((row) => row.counts.some((jobs) => jobs > 0));
  return { ...now, ended, durations };
}

// Attainment and error budget by class of clip; a burn rate of 1 uses up the budget exactly in its window.
function Objectives({ slo }) {
  if (!slo?.data.length) return null;
  const windows = Object.keys(slo.data[0].burn_rates);
  const rate = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(1)} ×`);
  return (
    <section class="card"><h2>Objectives over {seconds(slo.window_seconds)}</h2>
      <Table label="Objectives" empty="" head={["Class", "Objective", "Target", "Clips", "Late", "In time", "Budget left", ...windows.map((name) => `Burn, ${name}`)]}
        rows={slo.data.map((each) => [each.class, seconds(each.objective_seconds), percent(each.target), count(each.jobs), count(each.late), each.attained === null ? "–" : percent(each.attained), each.budget_left === null ? "–" : percent(each.budget_left), ...windows.map((name) => rate(each.burn_rates[name]))])} />
      <code class="metric">filmgate_slo_jobs_total</code></section>
  );
}

export function Service() {
  const { data: whole, error } = useData("/v1/statistics", 5);
  const { data: slo } = useData("/v1/slo", 10);
  const base = useRef(null);
  const [isSinceOpen, setSinceOpen] = useState(false);
  if (!whole) return <Page title="Service"><Notice problem={error} /></Page>;
  base.current ||= { whole, at: Date.now() };
  const hours = (Date.now() - base.current.at) / 3.6e6;
  const data = isSinceOpen ? since(whole, base.current.whole) : whole;
  const done = data.ended.filter((each) => each.state === "completed");
  const cancelled = data.ended.filter((each) => each.reason === "cancelled");
  const failed = data.ended.filter((each) => each.state === "failed" && each.reason !== "cancelled");
  const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] || 0), 0);
  const totals = data.durations.filter((each) => each.kind === "total");
  const jobs = totals.reduce((total, each) => total + each.counts.reduce((a, b) => a + b, 0), 0);
  const inTime = totals.reduce((total, each) => total + within(each, data.bounds, data.slo_seconds), 0);
  const most = Math.max(...failed.map((each) => each.jobs), 1);
  const hasPrice = done.some((each) => each.usd !== null);
  return (
    <Page title="Service" actions={<label class="range"><span class="label">Range</span><select value={isSinceOpen ? "open" : "all"} onChange={(event) => setSinceOpen(event.currentTarget.value === "open")}>
      <option value="all">Since the service exists</option><option value="open">While this page is open</option></select></label>}>
      <Notice problem={error} />
      <Objectives slo={slo} />
      <div class="tiles">
        <Tile label={`Ready within ${seconds(data.slo_seconds)}`} value={jobs ? percent(inTime / jobs) : "–"} note={`${count(jobs)} clips`} metric="filmgate_job_seconds" />
        <Tile label="Completed" value={count(sum(done, "jobs"))} note={isSinceOpen && hours > 0 ? `${count(sum(done, "jobs") / hours)} per hour` : null} metric="filmgate_jobs_ended_total" />
        <Tile label="Failed" value={count(sum(failed, "jobs"))} note={`${count(sum(cancelled, "jobs"))} cancelled`} metric="filmgate_jobs_ended_total" />
        <Tile label="GPU time" value={seconds(sum(done, "gpu_seconds"))} note={hasPrice ? usd(sum(done, "usd")) : null} metric="filmgate_gpu_seconds_total" />
      </div>
      <section class="card"><h2>Latency by model and route</h2><Table label="Seconds by model and route" empty="No clip is finished yet." head={["Model", "Route", "Part", "Clips", "p50", "p95", "p99", "Mean"]}
        rows={[...data.durations].sort((a, b) => PARTS.indexOf(a.kind) - PARTS.indexOf(b.kind)).map((each) => { const jobs = each.counts.reduce((a, b) => a + b, 0); return [each.model, each.route, each.kind, count(jobs), ...[0.5, 0.95, 0.99].map((share) => seconds(quantile(each.counts, data.bounds, share))), seconds(each.seconds / jobs)]; })} /></section>
      <div class="columns">
        <section class="card"><h2>GPU time by tenant and model</h2><Table label="GPU time by tenant and model" empty="No clip is finished yet." head={["Tenant", "Model", "Route", "Clips", "GPU time", ...(hasPrice ? ["Cost"] : [])]}
          rows={[...done].sort((a, b) => b.gpu_seconds - a.gpu_seconds).map((each) => [each.tenant, each.model, each.route, count(each.jobs), seconds(each.gpu_seconds), ...(hasPrice ? [usd(each.usd)] : [])])} /></section>
        <section class="card"><h2>Failures by reason</h2>{failed.length === 0 ? <p class="note">No job has failed.</p> : <ul class="bars">{grouped(failed, (each) => each.reason || "unknown", (each) => each.jobs).map(([reason, number]) => <li><span>{reason}</span><Bar value={Math.min(100 * number / most, 100)} label={reason} /><span>{count(number)}</span></li>)}</ul>}</section>
      </div>
    </Page>
  );
}
