// Service since its first start: counts, latency by stage, GPU time and failures.
import { count, seconds, usd } from "./format.js";
import { useData } from "./hooks.js";
import { Loading, Metric, Notice, Table, Tile } from "./parts.jsx";
import { Failures, sum } from "./usage.jsx";

const STAGES = ["total", "wait", "load", "text", "denoise", "decode", "upload"];

// The quantile of a histogram, interpolated within its bucket.
export function quantile(counts, bounds, share) {
  const total = counts.reduce((all, each) => all + each, 0);
  let below = 0;
  for (let index = 0; index < counts.length; index += 1) {
    if (counts[index] && below + counts[index] >= share * total) {
      if (index === bounds.length) return bounds.at(-1);
      const low = index ? bounds[index - 1] : 0;
      return low + ((bounds[index] - low) * (share * total - below)) / counts[index];
    }
    below += counts[index];
  }
  return null;
}

// The counters of Prometheus, which are never reset, with the stages of a job.
export function AllTime() {
  const { data, error } = useData("/v1/statistics", 10);
  if (!data) return error ? <Notice problem={error} /> : <Loading />;
  const done = data.ended.filter((each) => each.state === "completed");
  const failed = data.ended.filter((each) => each.state === "failed" && each.reason !== "cancelled");
  const cancelled = data.ended.filter((each) => each.reason === "cancelled");
  const reasons = [...new Set(failed.map((each) => each.reason || "unknown"))];
  const hasPrice = done.some((each) => each.usd !== null);
  const stages = [...data.durations].sort(
    (a, b) =>
      a.model.localeCompare(b.model) ||
      a.route.localeCompare(b.route) ||
      STAGES.indexOf(a.kind) - STAGES.indexOf(b.kind),
  );
  const row = (each) => {
    const jobs = each.counts.reduce((all, number) => all + number, 0);
    return [
      each.model,
      each.route,
      each.kind,
      count(jobs),
      ...[0.5, 0.95, 0.99].map((share) => seconds(quantile(each.counts, data.bounds, share))),
      seconds(each.seconds / jobs),
    ];
  };
  return (
    <>
      <div class="tiles">
        <Tile label="Completed" value={count(sum(done, "jobs"))} metric="filmgate_jobs_ended_total" />
        <Tile
          label="Failed"
          value={count(sum(failed, "jobs"))}
          note={`${count(sum(cancelled, "jobs"))} cancelled`}
          metric="filmgate_jobs_ended_total"
        />
        <Tile
          label="GPU time"
          value={seconds(sum(done, "gpu_seconds"))}
          note={hasPrice ? usd(sum(done, "usd")) : null}
          metric="filmgate_gpu_seconds_total"
        />
      </div>
      <section class="card">
        <h2>Latency by model, route and stage</h2>
        <Table
          label="Seconds by model and route"
          empty="No clip is finished yet."
          numbers={3}
          head={["Model", "Route", "Stage", "Clips", "p50", "p95", "p99", "Mean"]}
          rows={stages.map(row)}
        />
        <Metric name="filmgate_stage_seconds" />
      </section>
      <div class="columns">
        <section class="card">
          <h2>GPU time by tenant and model</h2>
          <Table
            label="GPU time by tenant and model"
            empty="No clip is finished yet."
            numbers={3}
            head={["Tenant", "Model", "Route", "Clips", "GPU time", ...(hasPrice ? ["Cost"] : [])]}
            rows={[...done]
              .sort((a, b) => b.gpu_seconds - a.gpu_seconds)
              .map((each) => [
                each.tenant,
                each.model,
                each.route,
                count(each.jobs),
                seconds(each.gpu_seconds),
                ...(hasPrice ? [usd(each.usd)] : []),
              ])}
          />
          <Metric name="filmgate_gpu_seconds_total" />
        </section>
        <Failures
          rows={reasons.map((reason) => ({
            reason,
            jobs: sum(
              failed.filter((each) => (each.reason || "unknown") === reason),
              "jobs",
            ),
          }))}
        />
      </div>
    </>
  );
}
