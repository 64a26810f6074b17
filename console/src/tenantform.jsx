// The form of a tenant: quotas, scopes, prompt screening and managed provider.
import { useState } from "preact/hooks";
import { patch, post } from "./api.js";
import { Notice } from "./parts.jsx";

const SCOPES = ["generate", "read", "admin"];
const ACTIONS = ["allow", "flag", "reject"];
const LIMITS = [
  ["max_queued", "Maximum queued jobs"],
  ["max_running", "Maximum running jobs"],
  ["max_gpu_seconds_per_day", "Maximum GPU-seconds per day"],
];
const isName = (text) => /^[a-z0-9][a-z0-9-]{0,62}$/.test(text);
const toNumber = (text) => (text === "" ? null : Number(text));

function Checks({ legend, names, chosen, onChange }) {
  const toggle = (name) => () =>
    onChange(chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen, name]);
  return (
    <fieldset class="checks">
      <legend class="label">{legend}</legend>
      {names.map((name) => (
        <label>
          <input type="checkbox" checked={chosen.includes(name)} onChange={toggle(name)} /> {name}
        </label>
      ))}
    </fieldset>
  );
}

function Screening({ categories, chosen, onChange }) {
  const change = (name) => (event) => {
    const { value } = event.currentTarget;
    const { [name]: _, ...rest } = chosen;
    onChange(value ? { ...rest, [name]: value } : rest);
  };
  return (
    <details>
      <summary>Prompt screening</summary>
      <div class="grid">
        {categories.map((each) => (
          <label class="field">
            <span class="label">{each.name.replaceAll("_", " ")}</span>
            <select
              disabled={each.is_fixed}
              value={each.is_fixed ? "" : chosen[each.name] || ""}
              onChange={change(each.name)}
            >
              <option value="">{each.is_fixed ? `${each.action}, fixed` : `default: ${each.action}`}</option>
              {ACTIONS.map((action) => (
                <option value={action}>{action}</option>
              ))}
            </select>
          </label>
        ))}
      </div>
    </details>
  );
}

function Managed({ policy, onChange }) {
  const set = (name, value) => onChange({ ...policy, [name]: value });
  const check = (name, label) => (
    <label>
      <input type="checkbox" checked={policy[name]} onChange={() => set(name, !policy[name])} /> {label}
    </label>
  );
  return (
    <details>
      <summary>Managed provider</summary>
      <div class="checks">
        {check("is_allowed", "may render late jobs")}
        {check("may_resize", "may change the size")}
        {check("may_change_length", "may change the length")}
      </div>
      <div class="grid">
        <label class="field">
          <span class="label">Regions, comma-separated (empty: any)</span>
          <input
            value={policy.regions.join(", ")}
            onChange={(event) =>
              set(
                "regions",
                event.currentTarget.value
                  .split(",")
                  .map((name) => name.trim())
                  .filter(Boolean),
              )
            }
          />
        </label>
        <label class="field">
          <span class="label">Maximum USD per clip (empty: no limit)</span>
          <input
            type="number"
            min="0"
            step="any"
            value={policy.max_usd_per_clip ?? ""}
            onInput={(event) => set("max_usd_per_clip", toNumber(event.currentTarget.value))}
          />
        </label>
      </div>
    </details>
  );
}

export const NEW = {
  id: "",
  weight: 1,
  scopes: ["generate", "read"],
  max_queued: null,
  max_running: null,
  max_gpu_seconds_per_day: null,
  screening: {},
  managed: { is_allowed: false, regions: [], max_usd_per_clip: null, may_resize: false, may_change_length: false },
};

export function Editor({ tenant, categories, onDone, onClose }) {
  const isNew = !tenant.created_at;
  const [draft, setDraft] = useState(tenant);
  const [problem, setProblem] = useState(null);
  const set = (name, value) => setDraft((old) => ({ ...old, [name]: value }));
  const save = async (event) => {
    event.preventDefault();
    const { id, weight, scopes, max_queued, max_running, max_gpu_seconds_per_day, screening, managed } = draft;
    const fields = { weight, scopes, max_queued, max_running, max_gpu_seconds_per_day, screening, managed };
    // Another operator may have changed the other fields since this form was opened.
    const isChanged = ([name, value]) => JSON.stringify(value) !== JSON.stringify(tenant[name]);
    const changed = Object.fromEntries(Object.entries(fields).filter(isChanged));
    try {
      onDone(isNew ? await post("/v1/tenants", { id, ...fields }) : await patch(`/v1/tenants/${id}`, changed));
    } catch (found) {
      setProblem(found);
    }
  };
  return (
    <form class="card editor" onSubmit={save}>
      <h2>{isNew ? "New tenant" : `Change ${tenant.id}`}</h2>
      <div class="grid">
        {isNew && (
          <label class="field">
            <span class="label">Name</span>
            <input
              name="id"
              value={draft.id}
              onInput={(event) => set("id", event.currentTarget.value)}
              placeholder="a-z, 0-9 and -"
              autoComplete="off"
            />
          </label>
        )}
        <label class="field">
          <span class="label">Weight (share of the GPUs)</span>
          <input
            type="number"
            name="weight"
            min="0.01"
            step="any"
            required
            value={draft.weight}
            onInput={(event) => set("weight", Number(event.currentTarget.value))}
          />
        </label>
        {LIMITS.map(([name, label]) => (
          <label class="field">
            <span class="label">{label} (empty: no limit)</span>
            <input
              type="number"
              name={name}
              min={name === "max_gpu_seconds_per_day" ? 0 : 1}
              value={draft[name] ?? ""}
              onInput={(event) => set(name, toNumber(event.currentTarget.value))}
            />
          </label>
        ))}
      </div>
      <Checks legend="Scopes" names={SCOPES} chosen={draft.scopes} onChange={(scopes) => set("scopes", scopes)} />
      <Screening
        categories={categories}
        chosen={draft.screening}
        onChange={(screening) => set("screening", screening)}
      />
      <Managed policy={draft.managed} onChange={(managed) => set("managed", managed)} />
      <Notice problem={problem} />
      <div class="actions">
        <button type="submit" class="primary" disabled={!draft.scopes.length || !isName(draft.id)}>
          {isNew ? "Add tenant" : "Save"}
        </button>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </form>
  );
}
