// One clip with its player, progress and actions.
import { useEffect, useRef, useState } from "preact/hooks";
import { post, remove } from "./api.js";
import { cost, isFinal, seconds, when } from "./format.js";
import { useModels, useVideo } from "./hooks.js";
import { Bar, ConfirmButton, CopyButton, Notice, State } from "./parts.jsx";
import { Picture, Player, createLink, streamLink } from "./player.jsx";

const SETTINGS = [
  "model",
  "size",
  "seconds",
  "fps",
  "steps",
  "guidance",
  "seed",
  "quality",
  "lora",
  "negative_prompt",
  "pixel_format",
];

// Made from the frames of another clip, by a request that names it, has these settings and inherits the rest.
const CONTINUED = {
  edit: { path: "/edits", settings: ["seed", "quality"] },
  extend: { path: "/extensions", settings: ["seconds", "seed", "quality"] },
};

// The request that creates this clip again: its path below /v1/videos, and its body. An image is used again as well.
export function toRequest(video) {
  const { path, settings } = CONTINUED[video.source] || { path: "", settings: [...SETTINGS, "input_reference"] };
  const names = settings.filter((name) => video[name] !== null && video[name] !== undefined);
  return {
    path,
    body: {
      prompt: video.prompt || "",
      ...(path && { video: { id: video.remixed_from_video_id } }),
      ...Object.fromEntries(names.map((name) => [name, video[name]])),
    },
  };
}

// What can be made from a clip, if its model can: the name of the ability, where to send it, and what it asks for.
const VERBS = {
  remix: {
    label: "Remix",
    hint: (video) => `New prompt, same ${video.input_reference ? "image, " : ""}noise, size and length`,
    send: (video, prompt) => post(`/v1/videos/${video.id}/remix`, { prompt }),
  },
  extend: {
    label: "Extend",
    hint: () => "What happens next",
    hasLength: true,
    send: (video, prompt, length) =>
      post("/v1/videos/extensions", { prompt, video: { id: video.id }, ...(length && { seconds: length }) }),
  },
};

function Derive({ verb, video, onCreated, onClose }) {
  const [prompt, setPrompt] = useState(video.prompt || "");
  const [length, setLength] = useState(video.seconds);
  const { label, hint, hasLength, send } = VERBS[verb];
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    try {
      onCreated(await send(video, prompt, length));
      onClose();
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    <form class="remix" onSubmit={submit}>
      <label class="field">
        <span class="label">{hint(video)}</span>
        <input
          ref={field}
          name={verb}
          dir="auto"
          value={prompt}
          onInput={(event) => setPrompt(event.currentTarget.value)}
        />
      </label>
      {hasLength && (
        <label class="field">
          <span class="label">Seconds to add</span>
          <input
            name="extend_seconds"
            type="number"
            min="0.25"
            step="0.25"
            value={length}
            onInput={(event) => setLength(event.currentTarget.value)}
          />
        </label>
      )}
      <Notice problem={problem} />
      <div class="actions">
        <button type="submit" class="primary" disabled={!prompt.trim()}>
          {label}
        </button>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </form>
  );
}

async function copyLink(video) {
  const { url, expires_at } = await createLink(video.id);
  return [location.origin + url, `Copied, valid until ${when(expires_at)}`];
}

async function download(video) {
  const link = document.createElement("a");
  link.href = await streamLink(video.id);
  link.download = `${video.id}.mp4`;
  link.click();
}

export function ClipActions({ video, setVideo, onCreated, onRemoved, hasNotes }) {
  const [verb, setVerb] = useState(null);
  const model = useModels()[video.model],
    sources = model?.limits.sources || [];
  const missing = model ? Object.keys(VERBS).filter((name) => !sources.includes(name)) : [];
  const [problem, setProblem] = useState(null);
  const attempt = (work) => async () => {
    setProblem(null);
    try {
      await work();
    } catch (error) {
      setProblem(error);
    }
  };
  const again = async () => {
    const { path, body } = toRequest(video);
    onCreated(await post(`/v1/videos${path}`, { ...body, seed: Math.floor(Math.random() * 2 ** 31) }));
  };
  const mayRepeat = isFinal(video) && video.prompt && (!CONTINUED[video.source] || sources.includes(video.source));
  return (
    <>
      <div class="actions">
        {!isFinal(video) && (
          <button
            type="button"
            onClick={attempt(async () => setVideo({ ...video, ...(await post(`/v1/videos/${video.id}/cancel`)) }))}
          >
            Cancel
          </button>
        )}
        {video.status === "completed" && (
          <>
            <button type="button" onClick={attempt(() => download(video))}>
              Download
            </button>
            {Object.keys(VERBS)
              .filter((name) => sources.includes(name))
              .map((name) => (
                <button
                  type="button"
                  aria-expanded={verb === name}
                  onClick={() => setVerb(verb === name ? null : name)}
                >
                  {VERBS[name].label}
                </button>
              ))}
            <CopyButton label="Copy link" text={() => copyLink(video)} />
          </>
        )}
        {mayRepeat && (
          <button type="button" onClick={attempt(again)}>
            Another seed
          </button>
        )}
        {isFinal(video) && (
          <ConfirmButton
            label="Delete"
            confirmLabel="Delete permanently"
            onConfirm={attempt(async () => {
              await remove(`/v1/videos/${video.id}`);
              onRemoved(video.id);
            })}
          />
        )}
      </div>
      {hasNotes && video.status === "completed" && missing.length > 0 && (
        <p class="hint">
          The model {video.model} cannot {missing.join(" or ")} clips.
        </p>
      )}
      <Notice problem={problem} />
      {verb && <Derive key={verb} verb={verb} video={video} onCreated={onCreated} onClose={() => setVerb(null)} />}
    </>
  );
}

export function ClipCard({ video: initial, isLarge, onCreated, onRemoved }) {
  const [video, preview, setVideo] = useVideo(initial);
  const isOpen = !isFinal(video);
  return (
    <article class={`card clip ${isLarge ? "is-large" : ""}`} data-id={video.id} data-status={video.status}>
      {isLarge || isOpen || video.status === "failed" ? (
        <Player video={video} preview={preview} />
      ) : (
        <Picture video={video} />
      )}
      <div class="clip-text">
        <p class="prompt" dir="auto">
          <a href={`#/clips/${video.id}`}>{video.prompt || video.id}</a>
        </p>
        <p class="facts">
          <State video={video} />
          <span>{video.size}</span>
          <span>{video.seconds} s</span>
          <span>{when(video.created_at)}</span>
          {isOpen && video.eta_seconds !== null && <span>about {seconds(video.eta_seconds)} left</span>}
          {video.status === "completed" && <span>{cost(video.cost)}</span>}
        </p>
        {isOpen && <Bar value={video.progress} label="Progress" />}
        {video.error && video.error.code !== "cancelled" && <Notice problem={video.error} />}
        <ClipActions video={video} setVideo={setVideo} onCreated={onCreated} onRemoved={onRemoved} />
      </div>
    </article>
  );
}
