// Plan: which machines, how many, and what they cost.
import { useState } from "preact/hooks";
import { post } from "./api.js";
import { count, gib, percent, seconds, usd } from "./format.js";
import { useData } from "./hooks.js";
import { Notice, Page, Table, Tile } from "./parts.jsx";

const START = {
  model: "wan2.1-t2v-14b",
  size: "1280x720",
  seconds: "5",
  clips_per_day: "500",
  slo_seconds: "3600",
  region: "us-east-1",
  traffic: "steady",
};

const Lines = ({ title, lines }) =>
  lines?.length > 0 && (
    <details class="card">
      <summary>{title}</summary>
      <ul class="plain">
        {lines.map((line) => (
          <li>{line}</li>
        ))}
      </ul>
    </details>
  );

function Answer({ plan }) {
  const highestPrice = Math.max(...plan.options.map((option) => option.usd_per_unit || 0), 1e-9);
  return (
    <div class="stack" aria-live="polite">
      <section class="card verdict">
        <h2>Verdict</h2>
        <p>{plan.verdict}</p>
        {plan.fleet?.reasons && (
          <ul class="plain note">
            {plan.fleet.reasons.map((reason) => (
              <li>{reason[0].toUpperCase() + reason.slice(1)}.</li>
            ))}
          </ul>
        )}
      </section>
      {plan.cost && plan.time && plan.fleet && (
        <div class="tiles">
          <Tile
            label="Per clip"
            value={usd(plan.cost.usd_per_clip)}
            note={`${usd(plan.cost.usd_per_month)} per month`}
          />
          <Tile
            label="Time per clip"
            value={seconds(plan.time.seconds_per_clip)}
            note={`${seconds(plan.time.low)} to ${seconds(plan.time.high)}`}
          />
          <Tile label="Machines" value={plan.fleet.instances ?? "–"} note={plan.fleet.machine} />
          <Tile
            label="p95 with queue"
            value={seconds(plan.fleet.latency_p95)}
            note={plan.fleet.utilisation ? `${percent(plan.fleet.utilisation)} busy` : null}
          />
        </div>
      )}
      {plan.options.length > 0 && (
        <section class="card">
          <h2>Options that fit</h2>
          <ul class="bars">
            {plan.options.map((option) => (
              <li>
                <span>
                  {option.name}
                  <span class="note">
                    {" "}
                    {option.gpus_per_replica} × {option.gpu}, {seconds(option.seconds)}
                  </span>
                </span>
                <span class="bar">
                  <i style={{ width: `${(100 * (option.usd_per_unit || 0)) / highestPrice}%` }} />
                </span>
                <span>{usd(option.usd_per_unit)}</span>
              </li>
            ))}
          </ul>
        </section>
      )}
      {plan.cost?.by_volume && (
        <section class="card">
          <h2>Cost by volume</h2>
          <ul class="bars">
            {plan.cost.by_volume.map((each) => (
              <li>
                <span>{count(each.clips_per_day)} clips per day</span>
                <span class="bar">
                  <i
                    style={{
                      width: `${(100 * each.usd_per_clip) / Math.max(...plan.cost.by_volume.map((other) => other.usd_per_clip))}%`,
                    }}
                  />
                </span>
                <span>{usd(each.usd_per_clip)}</span>
              </li>
            ))}
          </ul>
        </section>
      )}
      {plan.memory && (
        <section class="card">
          <h2>Memory of one GPU</h2>
          <dl>
            {plan.memory.lines.map((line) => (
              <div>
                <dt>{line.name}</dt>
                <dd>{gib(line.bytes)}</dd>
              </div>
            ))}
            <div>
              <dt>Peak, in {plan.memory.peak_stage}</dt>
              <dd>
                {gib(plan.memory.peak_bytes)} of {gib(plan.memory.capacity_bytes)}
              </dd>
            </div>
          </dl>
        </section>
      )}
      {plan.plan_b?.length > 0 && (
        <section class="card is-wrapped">
          <h2>If this plan fails</h2>
          <Table
            label="Other plans"
            empty=""
            numbers={2}
            head={["Plan", "With", "Time per clip", "Per month"]}
            rows={plan.plan_b.map((each) => [
              each.name,
              [each.what, each.note].filter(Boolean).join(", "),
              seconds(each.seconds),
              usd(each.usd_per_month),
            ])}
          />
        </section>
      )}
      <Lines title="Assumptions" lines={plan.assumptions} />
      <Lines title="Sources of the figures" lines={plan.sources} />
      <details class="card">
        <summary>{plan.rejected.length} machines that do not fit</summary>
        <ul class="plain">
          {plan.rejected.map((each) => (
            <li>
              <strong>{each.name}</strong> {each.reason}
            </li>
          ))}
        </ul>
      </details>
    </div>
  );
}

export function Plan() {
  const { data: choices, error } = useData("/v1/plan");
  const [fields, setFields] = useState(START);
  const [answer, setAnswer] = useState({});
  const set = (name) => (event) => {
    const { value } = event.currentTarget;
    setFields((old) => ({ ...old, [name]: value }));
  };
  const submit = async (event) => {
    event.preventDefault();
    setAnswer({ isBusy: true });
    const question = Object.fromEntries(
      Object.entries(fields)
        .filter(([, value]) => value !== "")
        .map(([name, value]) => [
          name,
          ["seconds", "clips_per_day", "slo_seconds"].includes(name) ? Number(value) : value,
        ]),
    );
    try {
      setAnswer({ plan: await post("/v1/plan", question) });
    } catch (problem) {
      setAnswer({ problem });
    }
  };
  const choose = (name, label, values) => (
    <label class="field">
      <span class="label">{label}</span>
      <select name={name} value={fields[name]} onChange={set(name)}>
        {values.map((value) => (
          <option value={value}>{value}</option>
        ))}
      </select>
    </label>
  );
  const type = (name, label, hint) => (
    <label class="field">
      <span class="label">{label}</span>
      <input name={name} value={fields[name]} onInput={set(name)} />
      {hint && <span class="hint">{hint}</span>}
    </label>
  );
  return (
    <Page title="Plan" lead="Which GPUs, how many, how fast and at what price.">
      <Notice problem={error} />
      <div class="studio">
        {choices ? (
          <form class="card composer" onSubmit={submit}>
            {choose("model", "Model", choices.models)}
            <div class="grid">
              {type("size", "Size")}
              {type("seconds", "Seconds of video")}
              {type("clips_per_day", "Clips per day")}
              {type("slo_seconds", "Ready within (s)", "95 of 100 clips")}
            </div>
            {choose("region", "AWS region", choices.regions)}
            {choose("traffic", "Traffic", choices.traffic)}
            <div class="actions">
              <button type="submit" class="primary" disabled={answer.isBusy}>
                {answer.isBusy ? "Computing…" : "Compute plan"}
              </button>
            </div>
            <Notice problem={answer.problem} />
          </form>
        ) : (
          <div class="card composer" />
        )}
        {answer.plan ? (
          <Answer plan={answer.plan} />
        ) : (
          <div class="card empty">
            <p>
              The plan appears here: a verdict, every machine that fits with its price, and the reason why the others do
              not.
            </p>
          </div>
        )}
      </div>
    </Page>
  );
}
