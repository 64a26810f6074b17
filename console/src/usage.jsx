// What the pages of recent and of all usage share.
import { count } from "./format.js";
import { Bar, Metric } from "./parts.jsx";

export const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] || 0), 0);

export function Failures({ rows }) {
  const failed = rows.filter((row) => row.jobs > 0).sort((a, b) => b.jobs - a.jobs);
  return (
    <section class="card">
      <h2>Failures by reason</h2>
      {failed.length === 0 ? (
        <p class="note">No job has failed.</p>
      ) : (
        <ul class="bars">
          {failed.map(({ reason, jobs }) => (
            <li>
              <span>{reason}</span>
              <Bar value={(100 * jobs) / failed[0].jobs} label={reason} />
              <span>{count(jobs)}</span>
            </li>
          ))}
        </ul>
      )}
      <Metric name="filmgate_jobs_ended_total" />
    </section>
  );
}
