// Service: a range of time, and the objectives.
import { useState } from "preact/hooks";
import { AllTime } from "./alltime.jsx";
import { count, percent, seconds } from "./format.js";
import { useData } from "./hooks.js";
import { Metric, Notice, Page, Table } from "./parts.jsx";
import { RANGES, Recent } from "./recent.jsx";

// Attainment and error budget by class of clip; a burn rate of 1 uses up the budget exactly in its window.
function Objectives({ slo }) {
  if (!slo?.data.length) return null;
  const windows = Object.keys(slo.data[0].burn_rates);
  const rate = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(1)} ×`);
  return (
    <section class="card">
      <h2>Objectives over {seconds(slo.window_seconds)}</h2>
      <Table
        label="Objectives"
        empty=""
        numbers={1}
        head={[
          "Class",
          "Objective",
          "Target",
          "Clips",
          "Late",
          "On time",
          "Budget left",
          ...windows.map((name) => `Burn, ${name}`),
        ]}
        rows={slo.data.map((each) => [
          each.class,
          seconds(each.objective_seconds),
          percent(each.target),
          count(each.jobs),
          count(each.late),
          each.attained === null ? "–" : percent(each.attained),
          each.budget_left === null ? "–" : percent(each.budget_left),
          ...windows.map((name) => rate(each.burn_rates[name])),
        ])}
      />
      <Metric name="filmgate_slo_jobs_total" />
    </section>
  );
}

export function Service() {
  const { data: slo, error } = useData("/v1/slo", 10);
  const [range, setRange] = useState("day");
  return (
    <Page
      title="Service"
      actions={
        <label class="range">
          <span class="label">Range</span>
          <select value={range} onChange={(event) => setRange(event.currentTarget.value)}>
            {Object.entries(RANGES).map(([name, { label }]) => (
              <option value={name}>{label}</option>
            ))}
            <option value="all">All time</option>
          </select>
        </label>
      }
    >
      <Notice problem={error} />
      {range === "all" ? <AllTime /> : <Recent key={range} range={range} />}
      <Objectives slo={slo} />
    </Page>
  );
}
