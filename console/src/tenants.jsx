// Tenants: add, change, enable, disable, rotate keys, and what each used today.
import { useState } from "preact/hooks";
import { patch, post, remove } from "./api.js";
import { seconds } from "./format.js";
import { useData } from "./hooks.js";
import { CopyButton, Notice, Page, SureButton, Table } from "./parts.jsx";

const SCOPES = ["generate", "read", "admin"];
const ACTIONS = ["allow", "flag", "reject"];
const OVERLAPS = [["0", "End the older keys now"], ["3600", "Keep them for 1 hour"], ["86400", "Keep them for 1 day"], ["604800", "Keep them for 7 days"]];
const LIMITS = [["max_queued", "Queued jobs"], ["max_running", "Running jobs"], ["max_gpu_seconds_per_day", "GPU-seconds per day"]];

const isName = (text) => /^[a-z0-9][a-z0-9-]{0,62}$/.test(text);
const toNumber = (text) => (text === "" ? null : Number(text));

function Key({ issued, onClose }) {
  return (
    <section class="card key" role="status"><h2>The API key of {issued.id}</h2>
      <p>Copy it now: only a digest is stored, and it is not shown again.</p>
      <p><code class="secret">{issued.api_key}</code></p>
      <div class="actions"><CopyButton text={issued.api_key} label="Copy key" /><button type="button" onClick={onClose}>Done</button></div>
    </section>
  );
}

function Checks({ legend, names, chosen, onChange }) {
  const toggle = (name) => () => onChange(chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen, name]);
  return <fieldset class="checks"><legend class="label">{legend}</legend>{names.map((name) => <label><input type="checkbox" checked={chosen.includes(name)} onChange={toggle(name)} /> {name}</label>)}</fieldset>;
}

function Screening({ categories, chosen, onChange }) {
  const change = (name) => (event) => {
    const { value } = event.currentTarget;
    const { [name]: _, ...rest } = chosen;
    onChange(value ? { ...rest, [name]: value } : rest);
  };
  return (
    <details><summary>Screening of prompts</summary><div class="grid">{categories.map((each) => (
      <label class="field"><span class="label">{each.name.replaceAll("_", " ")}</span>
        <select disabled={each.is_fixed} value={each.is_fixed ? "" : chosen[each.name] || ""} onChange={change(each.name)}><option value="">{each.is_fixed ? `${each.action}, fixed` : `default: ${each.action}`}</option>{ACTIONS.map((action) => <option value={action}>{action}</option>)}</select></label>))}</div></details>
  );
}

function Managed({ policy, onChange }) {
  const set = (name, value) => onChange({ ...policy, [name]: value });
  const check = (name, label) => <label><input type="checkbox" checked={policy[name]} onChange={() => set(name, !policy[name])} /> {label}</label>;
  return (
    <details><summary>Managed provider</summary>
      <div class="checks">{check("is_allowed", "may render late jobs")}{check("may_resize", "may change the size")}{check("may_change_length", "may change the length")}</div>
      <div class="grid">
        <label class="field"><span class="label">Regions, comma-separated; empty: any</span><input value={policy.regions.join(", ")} onChange={(event) => set("regions", event.currentTarget.value.split(",").map((name) => name.trim()).filter(Boolean))} /></label>
        <label class="field"><span class="label">Most dollars per clip; empty: no limit</span><input type="number" min="0" step="any" value={policy.max_usd_per_clip ?? ""} onInput={(event) => set("max_usd_per_clip", toNumber(event.currentTarget.value))} /></label>
      </div>
    </details>
  );
}

const NEW = { id: "", weight: 1, scopes: ["generate", "read"], max_queued: null, max_running: null, max_gpu_seconds_per_day: null, screening: {}, managed: { is_allowed: false, regions: [], max_usd_per_clip: null, may_resize: false, may_change_length: false } };

function Editor({ tenant, categories, onDone, onClose }) {
  const isNew = !tenant.created_at;
  const [draft, setDraft] = useState(tenant);
  const [problem, setProblem] = useState(null);
  const set = (name, value) => setDraft((old) => ({ ...old, [name]: value }));
  const save = async (event) => {
    event.preventDefault();
    const { id, weight, scopes, max_queued, max_running, max_gpu_seconds_per_day, screening, managed } = draft;
    const fields = { weight, scopes, max_queued, max_running, max_gpu_seconds_per_day, screening, managed };
    try {
      onDone(isNew ? await post("/v1/tenants", { id, ...fields }) : await patch(`/v1/tenants/${id}`, fields));
    } catch (found) {
      setProblem(found);
    }
  };
  return (
    <form class="card editor" onSubmit={save}>
      <h2>{isNew ? "New tenant" : `Change ${tenant.id}`}</h2>
      <div class="grid">
        {isNew && <label class="field"><span class="label">Name</span><input name="id" value={draft.id} onInput={(event) => set("id", event.currentTarget.value)} placeholder="a-z, 0-9 and -" autoComplete="off" /></label>}
        <label class="field"><span class="label">Weight: share of the GPUs</span><input type="number" name="weight" min="0.01" step="any" required value={draft.weight} onInput={(event) => set("weight", Number(event.currentTarget.value))} /></label>
        {LIMITS.map(([name, label]) => <label class="field"><span class="label">{label}; empty: no limit</span><input type="number" name={name} min={name === "max_gpu_seconds_per_day" ? 0 : 1} value={draft[name] ?? ""} onInput={(event) => set(name, toNumber(event.currentTarget.value))} /></label>)}
      </div>
      <Checks legend="Scopes" names={SCOPES} chosen={draft.scopes} onChange={(scopes) => set("scopes", scopes)} />
      <Screening categories={categories} chosen={draft.screening} onChange={(screening) => set("screening", screening)} />
      <Managed policy={draft.managed} onChange={(managed) => set("managed", managed)} />
      <Notice problem={problem} />
      <div class="actions"><button type="submit" class="primary" disabled={!draft.scopes.length || !isName(draft.id)}>{isNew ? "Add tenant" : "Save"}</button><button type="button" onClick={onClose}>Close</button></div>
    </form>
  );
}

function Rotate({ tenant, onIssued, onProblem, onClose }) {
  const [overlap, setOverlap] = useState("86400");
  const rotate = (event) => { event.preventDefault(); post(`/v1/tenants/${tenant.id}/rotate`, { overlap_seconds: Number(overlap) }).then(onIssued, onProblem); };
  return (
    <form class="card editor" onSubmit={rotate}><h2>New key for {tenant.id}</h2>
      <label class="field"><span class="label">The older keys</span><select value={overlap} onChange={(event) => setOverlap(event.currentTarget.value)}>{OVERLAPS.map(([value, label]) => <option value={value}>{label}</option>)}</select></label>
      <div class="actions"><button type="submit" class="primary">Issue a new key</button><button type="button" onClick={onClose}>Close</button></div></form>
  );
}

export function Tenants() {
  const { data, error, reload } = useData("/v1/tenants", 10);
  const { data: statistics } = useData("/v1/statistics", 10);
  const { data: screening } = useData("/v1/tenants/screening-categories");
  const [edited, setEdited] = useState(null);
  const [issued, setIssued] = useState(null);
  const [rotated, setRotated] = useState(null);
  const [problem, setProblem] = useState(null);
  const done = (tenant) => { setEdited(null); setRotated(null); setProblem(null); if (tenant.api_key) setIssued(tenant); reload(); };
  const attempt = (work) => async () => { try { await work(); setProblem(null); reload(); } catch (found) { setProblem(found); } };
  const used = new Map((statistics?.tenants || []).map((each) => [each.tenant, each.gpu_seconds_today]));
  const limit = (value, shown = (number) => number) => (value === null ? "no limit" : shown(value));
  return (
    <Page title="Tenants" actions={<button type="button" class="primary" onClick={() => { setRotated(null); setEdited(NEW); }}>Add tenant</button>}>
      <Notice problem={problem || error} />
      {issued && <Key issued={issued} onClose={() => setIssued(null)} />}
      {edited && screening && <Editor key={edited.id} tenant={edited} categories={screening.data} onDone={done} onClose={() => setEdited(null)} />}
      {rotated && <Rotate key={rotated.id} tenant={rotated} onIssued={done} onProblem={setProblem} onClose={() => setRotated(null)} />}
      {data && <section class="card"><Table label="Tenants" empty="There are no tenants." head={["Tenant", "Scopes", "Weight", "GPU time today", "At most per day", "At most queued", "At most running", <span class="quiet">Actions</span>]}
        rows={data.data.map((each) => [<strong>{each.id}{each.is_enabled ? "" : " (disabled)"}</strong>, each.scopes.join(", "), each.weight, seconds(used.get(each.id) ?? 0), limit(each.max_gpu_seconds_per_day, seconds), limit(each.max_queued), limit(each.max_running),
          <div class="actions"><button type="button" aria-label={`Change ${each.id}`} onClick={() => { setRotated(null); setEdited(each); }}>Change</button><button type="button" aria-label={`New key for ${each.id}`} onClick={() => { setEdited(null); setRotated(each); }}>New key</button>
            {each.is_enabled ? <SureButton label="Disable" sure="Disable: its keys stop working" aria-label={`Disable ${each.id}`} onSure={attempt(() => patch(`/v1/tenants/${each.id}`, { is_enabled: false }))} />
              : <><button type="button" aria-label={`Enable ${each.id}`} onClick={attempt(() => patch(`/v1/tenants/${each.id}`, { is_enabled: true }))}>Enable</button>
                <SureButton label="Delete" sure="Delete for good" aria-label={`Delete ${each.id}`} onSure={attempt(() => remove(`/v1/tenants/${each.id}`))} /></>}</div>])} /></section>}
    </Page>
  );
}
