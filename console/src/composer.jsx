// The form of a new clip and its estimate.
import { useEffect, useMemo, useState } from "preact/hooks";
import { post, repeat } from "./api.js";
import { cost, seconds } from "./format.js";
import { useDebounced } from "./hooks.js";
import { Code, Notice } from "./parts.jsx";

const EXAMPLES = [
  "a red ball bounces on the grass",
  "a yellow fish moves to the right in the sea",
  "a blue rocket rises in the night sky",
];
const SHAPES = [
  ["Square", 1],
  ["Landscape", 16 / 9],
  ["Portrait", 9 / 16],
  ["Wide 3:2", 3 / 2],
];
const TYPES = ["image/png", "image/jpeg", "image/webp"];
const remembered = { fields: null };

function sizesOf(limits) {
  const { default: standard, multiple, min_side, max_side, max_pixels } = limits.size;
  const [width, height] = standard.split("x").map(Number);
  const side = (value) =>
    Math.min(Math.max(Math.round(value / multiple) * multiple, Math.ceil(min_side / multiple) * multiple), max_side);
  const found = new Map([[standard, `${standard} (default)`]]);
  for (const scale of [1, 2]) {
    for (const [name, ratio] of SHAPES) {
      const pixels = width * height * scale;
      const size = [side(Math.sqrt(pixels * ratio)), side(Math.sqrt(pixels / ratio))];
      if (size[0] * size[1] <= max_pixels && !found.has(size.join("x")))
        found.set(size.join("x"), `${size.join("x")} ${name.toLowerCase()}`);
    }
  }
  return [...found];
}

const Field = ({ label, hint, isWide, children }) => (
  <label class={`field ${isWide ? "is-wide" : ""}`}>
    <span class="label">{label}</span>
    {children}
    {hint && <span class="hint">{hint}</span>}
  </label>
);

function ImageField({ file, onFile, mayUse }) {
  const [isOver, setOver] = useState(false);
  const [refused, setRefused] = useState(null);
  const url = useMemo(() => (file ? URL.createObjectURL(file) : null), [file]);
  useEffect(() => () => url && URL.revokeObjectURL(url), [url]);
  const take = (files) => {
    const image = [...files].find((each) => TYPES.includes(each.type));
    if (image) onFile(image);
    setRefused(image || !files.length ? null : `${files[0].name} is not an image: use PNG, JPEG or WebP.`);
  };
  useEffect(() => {
    if (!mayUse) return undefined;
    const paste = (event) => event.clipboardData?.files.length && take(event.clipboardData.files);
    addEventListener("paste", paste);
    return () => removeEventListener("paste", paste);
  }, [mayUse]);
  if (!mayUse) return null;
  return (
    <div
      class={`drop ${isOver ? "is-over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        take(event.dataTransfer.files);
      }}
    >
      <input
        id="image"
        type="file"
        accept={TYPES.join()}
        class="quiet"
        onChange={(event) => {
          take(event.currentTarget.files);
          event.currentTarget.value = "";
        }}
      />
      {file ? (
        <>
          <img src={url} alt="The first frame" />
          <span>{file.name}</span>
          <button type="button" onClick={() => onFile(null)}>
            Remove image
          </button>
        </>
      ) : (
        <label for="image">
          Start from an image: drop, paste or <u>choose a file</u>
        </label>
      )}
      {refused && (
        <p class="hint" role="alert">
          {refused}
        </p>
      )}
    </div>
  );
}

function toForm(body) {
  const form = new FormData();
  for (const [name, value] of Object.entries(body)) form.set(name, value);
  return form;
}

function Estimate({ body, image }) {
  const question = useDebounced(JSON.stringify(body), 350);
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    const stop = new AbortController();
    // An estimate does not read the image; that there is one may decide which route, and which model, can be used.
    const form = image && toForm({ ...JSON.parse(question), input_reference: new File([], image.name) });
    const estimate = async (signal) => {
      try {
        setAnswer({ estimate: await post("/v1/videos/estimate", form || JSON.parse(question), { signal }) });
      } catch (problem) {
        if (!signal.aborted) setAnswer({ problem });
        throw problem;
      }
    };
    repeat(estimate, 0, stop.signal);
    return () => stop.abort();
  }, [question, image]);
  const { estimate, problem } = answer;
  if (problem) return <Notice problem={problem} />;
  if (!estimate)
    return (
      <p class="estimate" aria-live="polite">
        Estimating…
      </p>
    );
  const ready =
    estimate.ready_in_seconds === null
      ? "No worker serves this model; the clip will wait until one starts"
      : `Ready in about ${seconds(estimate.ready_in_seconds)}`;
  const place = estimate.starts_in_seconds > 1 ? `, position ${estimate.queue_position} in the queue` : "";
  return (
    <p class="estimate" aria-live="polite">
      <strong>{ready}</strong>
      {place} · {cost(estimate.cost)}
      {estimate.route === "managed" && " · by a managed provider"}
      {image && " · with your image"}
    </p>
  );
}

function numbers(limits) {
  return [
    ["seed", "Seed", 0, 2 ** 31 - 1, 1, "random"],
    ["steps", "Steps", limits.steps.min, limits.steps.max, 1, limits.steps.default],
    ["guidance", "Guidance", limits.guidance.min, limits.guidance.max, 0.1, limits.guidance.default],
    ["fps", "Frames per second", limits.fps.min, limits.fps.max, 1, limits.fps.default],
  ];
}

// The adapters of the model, each with its scale; the field names them as the API does: NAME:SCALE,NAME.
function Adapters({ adapters, scales, onChange }) {
  if (!adapters.length) return null;
  const toggle = (name) => onChange({ ...scales, [name]: scales[name] === undefined ? "" : undefined });
  return (
    <fieldset class="checks">
      <legend class="label">LoRA</legend>
      {adapters.map(({ name, scale }) => (
        <span class="adapter">
          <label>
            <input type="checkbox" checked={scales[name] !== undefined} onChange={() => toggle(name)} />
            {name}
          </label>
          {scales[name] !== undefined && (
            <input
              type="number"
              aria-label={`Scale of ${name}`}
              min="-4"
              max="4"
              step="0.1"
              placeholder={scale}
              value={scales[name]}
              onInput={(event) => onChange({ ...scales, [name]: event.currentTarget.value })}
            />
          )}
        </span>
      ))}
    </fieldset>
  );
}

const toLora = (adapters, scales) =>
  adapters
    .filter(({ name }) => scales[name] !== undefined)
    .map(({ name }) => (scales[name] === "" ? name : `${name}:${scales[name]}`))
    .join(",");

export function Composer({ models, onCreated }) {
  const standard = models.find((model) => model.is_default) || models[0];
  const [fields, setFields] = useState(remembered.fields || { prompt: EXAMPLES[0], model: standard.id });
  const [chosen, setImage] = useState(null);
  const [problem, setProblem] = useState(null);
  const [isSending, setSending] = useState(false);
  const [created, setCreated] = useState(0);
  const [hasCode, setCode] = useState(false);
  remembered.fields = fields;
  const model = models.find((each) => each.id === fields.model) || standard;
  const { limits } = model;
  const mayUseImage = limits.sources.includes("image"),
    image = mayUseImage ? chosen : null;
  const sizes = useMemo(() => sizesOf(limits), [model.id]);
  const set = (name) => (event) => {
    const { value } = event.currentTarget;
    setFields((old) => ({ ...old, [name]: value }));
  };

  const body = {
    prompt: fields.prompt,
    model: model.id,
    size: sizes.some(([size]) => size === fields.size) ? fields.size : limits.size.default,
  };
  body.seconds = Math.min(
    Math.max(Number(fields.seconds || limits.seconds.default), limits.seconds.min),
    limits.seconds.max,
  );
  for (const [name] of numbers(limits)) if (fields[name]) body[name] = Number(fields[name]);
  if (fields.negative_prompt) body.negative_prompt = fields.negative_prompt;
  const adapters = model.adapters || [],
    levels = model.quality_levels || [];
  const lora = toLora(adapters, fields.scales || {});
  if (lora) body.lora = lora;
  const level = levels.find(({ name }) => name === fields.quality);
  if (level) body.quality = level.name;

  // Sent again because the response was lost, the same request is the same job.
  const idempotencyKey = useMemo(
    () => (crypto.randomUUID ? crypto.randomUUID() : String(Math.random())),
    [JSON.stringify(body), image, created],
  );
  const submit = async (event) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      const headers = { "Idempotency-Key": idempotencyKey };
      onCreated(await post("/v1/videos", image ? toForm({ ...body, input_reference: image }) : body, { headers }));
      setCreated(created + 1);
    } catch (error) {
      setProblem(error);
    } finally {
      setSending(false);
    }
  };
  const maySend = fields.prompt.trim() && !isSending;
  return (
    <form class="card composer" onSubmit={submit}>
      <label class="field">
        <span class="label">Prompt</span>
        <textarea
          name="prompt"
          dir="auto"
          rows={4}
          value={fields.prompt}
          onInput={set("prompt")}
          placeholder="What the clip shows"
          onKeyDown={(event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && maySend && submit(event)}
        />
      </label>
      {model.id === "flipbook" && (
        <div class="examples">
          {EXAMPLES.map((text) => (
            <button type="button" class="chip" onClick={() => setFields((old) => ({ ...old, prompt: text }))}>
              {text}
            </button>
          ))}
          <p class="hint">
            Flipbook, the built-in model, can draw one or two simple objects: balls, fish, rockets, houses and 14
            others, in 12 colours. It cannot draw people or text.
          </p>
        </div>
      )}
      <div class="grid">
        <Field label="Model">
          <select name="model" value={model.id} onChange={set("model")}>
            {models.map((each) => (
              <option value={each.id}>{each.id}</option>
            ))}
          </select>
        </Field>
        <Field label="Size">
          <select name="size" value={body.size} onChange={set("size")}>
            {sizes.map(([size, text]) => (
              <option value={size}>{text}</option>
            ))}
          </select>
        </Field>
        <Field isWide label={`Length: ${body.seconds} s`}>
          <input
            name="seconds"
            type="range"
            min={limits.seconds.min}
            max={limits.seconds.max}
            step={0.25}
            value={body.seconds}
            onInput={set("seconds")}
          />
        </Field>
      </div>
      {levels.length > 0 && (
        <Field label="Quality" hint={level?.description}>
          <select name="quality" value={level?.name || ""} onChange={set("quality")}>
            <option value="">Default</option>
            {levels.map(({ name }) => (
              <option value={name}>{name}</option>
            ))}
          </select>
        </Field>
      )}
      <ImageField file={image} onFile={setImage} mayUse={mayUseImage} />
      <details>
        <summary>More settings</summary>
        <div class="grid">
          {numbers(limits).map(([name, label, min, max, step, placeholder]) => (
            <Field label={label}>
              <input
                name={name}
                type="number"
                min={min}
                max={max}
                step={step}
                placeholder={placeholder}
                value={fields[name] || ""}
                onInput={set(name)}
              />
            </Field>
          ))}
        </div>
        <Field label="Negative prompt">
          <input
            name="negative_prompt"
            dir="auto"
            value={fields.negative_prompt || ""}
            onInput={set("negative_prompt")}
            placeholder="What the clip should not show"
          />
        </Field>
        <Adapters
          adapters={adapters}
          scales={fields.scales || {}}
          onChange={(scales) => setFields((old) => ({ ...old, scales }))}
        />
      </details>
      <Notice problem={problem} />
      {!problem && fields.prompt.trim() && <Estimate body={body} image={image} />}
      <div class="actions">
        <button type="submit" class="primary" disabled={!maySend}>
          {isSending ? "Sending…" : "Create clip"}
        </button>
        <button type="button" aria-expanded={hasCode} onClick={() => setCode(!hasCode)}>
          {hasCode ? "Hide code" : "Show as code"}
        </button>
      </div>
      {hasCode && <Code body={image ? { ...body, input_reference: image } : body} />}
    </form>
  );
}
