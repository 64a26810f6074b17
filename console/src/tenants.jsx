// Tenants: add, change, enable, disable, rotate keys, and what each used today.
import { useState } from "preact/hooks";
import { patch, post, readKey, remove, saveKey } from "./api.js";
import { seconds } from "./format.js";
import { useData } from "./hooks.js";
import { ConfirmButton, CopyButton, Notice, Page, Table } from "./parts.jsx";
import { Editor, NEW } from "./tenantform.jsx";

const OVERLAPS = [
  ["0", "Revoke now"],
  ["3600", "Keep for 1 hour"],
  ["86400", "Keep for 1 day"],
  ["604800", "Keep for 7 days"],
];

function Key({ issued, onClose }) {
  return (
    <section class="card key" role="status">
      <h2>The API key of {issued.id}</h2>
      <p>Copy it now: only a digest is stored, and it is not shown again.</p>
      <p>
        <code class="secret">{issued.api_key}</code>
      </p>
      <div class="actions">
        <CopyButton text={issued.api_key} label="Copy key" />
        <button type="button" onClick={onClose}>
          Done
        </button>
      </div>
    </section>
  );
}

function Rotate({ tenant, onIssued, onProblem, onClose }) {
  const [overlap, setOverlap] = useState("86400");
  const rotate = (event) => {
    event.preventDefault();
    post(`/v1/tenants/${tenant.id}/rotate`, { overlap_seconds: Number(overlap) }).then(onIssued, onProblem);
  };
  return (
    <form class="card editor" onSubmit={rotate}>
      <h2>New key for {tenant.id}</h2>
      <label class="field">
        <span class="label">Existing keys</span>
        <select value={overlap} onChange={(event) => setOverlap(event.currentTarget.value)}>
          {OVERLAPS.map(([value, label]) => (
            <option value={value}>{label}</option>
          ))}
        </select>
      </label>
      <div class="actions">
        <button type="submit" class="primary">
          Issue a new key
        </button>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </form>
  );
}

export function Tenants({ user }) {
  const { data, error, reload } = useData("/v1/tenants", 10);
  const { data: statistics } = useData("/v1/statistics", 10);
  const { data: screening } = useData("/v1/tenants/screening-categories");
  const [edited, setEdited] = useState(null);
  const [issued, setIssued] = useState(null);
  const [rotated, setRotated] = useState(null);
  const [problem, setProblem] = useState(null);
  const done = (tenant) => {
    setEdited(null);
    setRotated(null);
    setProblem(null);
    if (tenant.api_key) {
      setIssued(tenant);
      // The key of this tab may have been revoked: without the new one, the page would sign out before anybody saw it.
      if (tenant.id === user.tenant && readKey()) saveKey(tenant.api_key);
    }
    reload();
  };
  const attempt = (work) => async () => {
    try {
      await work();
      setProblem(null);
      reload();
    } catch (found) {
      setProblem(found);
    }
  };
  const used = new Map((statistics?.tenants || []).map((each) => [each.tenant, each.gpu_seconds_today]));
  const limit = (value, shown = (number) => number) => (value === null ? "no limit" : shown(value));
  return (
    <Page
      title="Tenants"
      actions={
        <button
          type="button"
          class="primary"
          onClick={() => {
            setRotated(null);
            setEdited(NEW);
          }}
        >
          Add tenant
        </button>
      }
    >
      <Notice problem={problem || error} />
      {issued && <Key issued={issued} onClose={() => setIssued(null)} />}
      {edited && screening && (
        <Editor
          key={edited.id}
          tenant={edited}
          categories={screening.data}
          onDone={done}
          onClose={() => setEdited(null)}
        />
      )}
      {rotated && (
        <Rotate
          key={rotated.id}
          tenant={rotated}
          onIssued={done}
          onProblem={setProblem}
          onClose={() => setRotated(null)}
        />
      )}
      {data && (
        <section class="card">
          <Table
            label="Tenants"
            empty="There are no tenants."
            head={[
              "Tenant",
              "Scopes",
              "Weight",
              "GPU time today",
              "Daily GPU-time limit",
              "Max. queued",
              "Max. running",
              <span class="quiet">Actions</span>,
            ]}
            rows={data.data.map((each) => [
              <strong>
                {each.id}
                {each.is_enabled ? "" : " (disabled)"}
              </strong>,
              each.scopes.join(", "),
              each.weight,
              seconds(used.get(each.id) ?? 0),
              limit(each.max_gpu_seconds_per_day, seconds),
              limit(each.max_queued),
              limit(each.max_running),
              <div class="actions">
                <button
                  type="button"
                  aria-label={`Change ${each.id}`}
                  onClick={() => {
                    setRotated(null);
                    setEdited(each);
                  }}
                >
                  Change
                </button>
                <button
                  type="button"
                  aria-label={`New key for ${each.id}`}
                  onClick={() => {
                    setEdited(null);
                    setRotated(each);
                  }}
                >
                  New key
                </button>
                {each.is_enabled ? (
                  <ConfirmButton
                    label="Disable"
                    confirmLabel="Disable: its keys stop working"
                    aria-label={`Disable ${each.id}`}
                    onConfirm={attempt(() => patch(`/v1/tenants/${each.id}`, { is_enabled: false }))}
                  />
                ) : (
                  <>
                    <button
                      type="button"
                      aria-label={`Enable ${each.id}`}
                      onClick={attempt(() => patch(`/v1/tenants/${each.id}`, { is_enabled: true }))}
                    >
                      Enable
                    </button>
                    <ConfirmButton
                      label="Delete"
                      confirmLabel="Delete permanently"
                      aria-label={`Delete ${each.id}`}
                      onConfirm={attempt(() => remove(`/v1/tenants/${each.id}`))}
                    />
                  </>
                )}
              </div>,
            ])}
          />
        </section>
      )}
    </Page>
  );
}
