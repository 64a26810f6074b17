// Small parts that several pages use.
import { useEffect, useState } from "preact/hooks";
import { KEY_HINT, toCurl, toJavaScript, toPython } from "./code.js";
import { state } from "./format.js";

const PATHS = {
  create: "M12 5v14M5 12h14",
  clips: "M4 5h7v6H4zM13 5h7v6h-7zM4 13h7v6H4zM13 13h7v6h-7z",
  queue: "M4 6h16M4 12h11M4 18h7",
  service: "M4 18l5-6 4 3 7-9",
  tenants:
    "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3 20c0-3.5 2.5-6 6-6s6 2.5 6 6M16 4.5a3.5 3.5 0 0 1 0 6M18 14.5c2 .8 3 2.8 3 5.5",
  plan: "M5 4h14v16H5zM9 8h6M9 12h6M9 16h3",
  docs: "M5 5a2 2 0 0 1 2-2h12v16H7a2 2 0 0 0-2 2zM5 19V5",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  leave: "M10 4H5v16h5M14 8l4 4-4 4M18 12H9",
};

export const Icon = ({ name }) => (
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
    <path d={PATHS[name]} />
  </svg>
);

// Text with `code` in it.
export const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? <code>{part}</code> : part));

export const Notice = ({ problem, children }) =>
  problem || children ? (
    <p class={`notice ${problem ? "is-problem" : ""}`} role={problem ? "alert" : undefined}>
      {problem ? withCode(problem.message) : children}
    </p>
  ) : null;

export const State = ({ video }) => (
  <span class={`state is-${video.status} ${video.error?.code === "cancelled" ? "is-cancelled" : ""}`}>
    {state(video)}
  </span>
);

export const Bar = ({ value, label }) => (
  <div class="bar" role="progressbar" aria-label={label} aria-valuenow={value} aria-valuemin="0" aria-valuemax="100">
    <i style={{ width: `${value}%` }} />
  </div>
);

// The name of the metric behind a number, linked to what this server says about it.
export const Metric = ({ name }) => (
  <a class="metric" href={`/docs/metrics#${name}`} title="What this metric means">
    {name.split("_").map((part, index) =>
      index ? (
        <>
          <wbr />_{part}
        </>
      ) : (
        part
      ),
    )}
  </a>
);

export const Tile = ({ label, value, note, metric }) => (
  <div class="tile">
    <span class="label">{label}</span>
    <strong>{value}</strong>
    {note && <span class="note">{note}</span>}
    {metric && <Metric name={metric} />}
  </div>
);

export const Loading = () => (
  <p class="loading" role="status">
    Loading…
  </p>
);

// Columns from the index `numbers` on are numbers: aligned to the right.
// On a phone, style.css shows each row as a block and each cell with its heading; the roles keep it a table.
export const Table = ({ head, rows, empty, label, numbers = head.length }) =>
  rows.length === 0 ? (
    <p class="note">{withCode(empty)}</p>
  ) : (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            {head.map((name, index) => (
              <th scope="col" role="columnheader" class={index >= numbers ? "number" : undefined}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map((row) => (
            <tr role="row">
              {row.map((cell, index) => (
                <td
                  role="cell"
                  data-label={typeof head[index] === "string" ? head[index] : undefined}
                  class={index >= numbers ? "number" : undefined}
                >
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );

export function Page({ title, lead, actions, children }) {
  useEffect(() => {
    document.title = `${title} · Filmgate`;
  }, [title]);
  return (
    <main id="main" tabIndex={-1}>
      <header class="page-head">
        <div>
          <h1>{title}</h1>
          {lead && <p class="lead">{lead}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </main>
  );
}

// Browsers have the clipboard only on HTTPS and on this machine; elsewhere the older way works.
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "quiet";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  return undefined;
}

// Copies a text, or what a function returns: the text, and what the button says then.
export function CopyButton({ text, label = "Copy" }) {
  const [said, setSaid] = useState(null);
  const copy = async () => {
    try {
      const [copied, note = "Copied"] = typeof text === "function" ? await text() : [text];
      await write(copied);
      setSaid(note);
    } catch (error) {
      setSaid(`Not copied: ${error.message}`);
    }
    setTimeout(() => setSaid(null), 3000);
  };
  return (
    <button type="button" onClick={copy}>
      <span aria-live="polite">{said || label}</span>
    </button>
  );
}

const LANGUAGES = { curl: toCurl, Python: toPython, JavaScript: toJavaScript };

export function Code({ body, path = "" }) {
  const [language, setLanguage] = useState("curl");
  const text = LANGUAGES[language](body, location.origin, path);
  return (
    <section class="code" aria-label="This request as code">
      <div class="tabs">
        {Object.keys(LANGUAGES).map((name) => (
          <button type="button" aria-pressed={name === language} onClick={() => setLanguage(name)}>
            {name}
          </button>
        ))}
        <CopyButton text={text} />
      </div>
      <pre tabIndex={0}>{text}</pre>
      <p class="hint">{withCode(KEY_HINT)}</p>
    </section>
  );
}

// Asks once more before it acts.
export function ConfirmButton({ label, confirmLabel, onConfirm, ...rest }) {
  const [isAsking, setAsking] = useState(false);
  useEffect(() => {
    if (!isAsking) return undefined;
    const timer = setTimeout(() => setAsking(false), 8000);
    return () => clearTimeout(timer);
  }, [isAsking]);
  return (
    <button
      type="button"
      {...rest}
      class={isAsking ? "danger" : rest.class}
      onClick={() => {
        if (isAsking) onConfirm();
        setAsking(!isAsking);
      }}
    >
      {isAsking ? confirmLabel : label}
    </button>
  );
}
