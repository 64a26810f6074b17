// One clip with its player, progress and actions.
import { useState } from "preact/hooks";
import { post, remove } from "./api.js";
import { cost, isFinal, seconds, when } from "./format.js";
import { useVideo } from "./hooks.js";
import { Bar, CopyButton, Notice, Picture, Player, State, SureButton, streamLink } from "./parts.jsx";

function Remix({ video, onCreated, onClose }) {
  const [prompt, setPrompt] = useState(video.prompt || "");
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      onCreated(await post(`/v1/videos/${video.id}/remix`, { prompt }));
      onClose();
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    <form class="remix" onSubmit={submit}>
      <label class="field"><span class="label">New prompt, same noise, size and length</span><input name="remix" value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} /></label>
      <Notice problem={problem} />
      <div class="actions"><button type="submit" class="primary" disabled={!prompt.trim()}>Remix</button><button type="button" onClick={onClose}>Close</button></div>
    </form>
  );
}

async function download(video) {
  const link = document.createElement("a");
  link.href = await streamLink(video.id);
  link.download = `${video.id}.mp4`;
  link.click();
}

export function ClipActions({ video, setVideo, onCreated, onRemoved }) {
  const [isRemixing, setRemixing] = useState(false);
  const [problem, setProblem] = useState(null);
  const attempt = (work) => async () => { setProblem(null); try { await work(); } catch (error) { setProblem(error); } };
  const again = async () => onCreated(await post("/v1/videos", { prompt: video.prompt, model: video.model, size: video.size, seconds: video.seconds, seed: Math.floor(Math.random() * 2 ** 31) }));
  return (
    <>
      <div class="actions">
        {!isFinal(video) && <button type="button" onClick={attempt(async () => setVideo({ ...video, ...(await post(`/v1/videos/${video.id}/cancel`)) }))}>Cancel</button>}
        {video.status === "completed" && <>
          <button type="button" onClick={attempt(() => download(video))}>Download</button>
          <button type="button" aria-expanded={isRemixing} onClick={() => setRemixing(!isRemixing)}>Remix</button>
          <CopyButton label="Copy link" text={async () => location.origin + (await streamLink(video.id))} />
        </>}
        {isFinal(video) && video.prompt && <button type="button" onClick={attempt(again)}>Another seed</button>}
        {isFinal(video) && <SureButton label="Delete" sure="Delete for good" onSure={attempt(async () => { await remove(`/v1/videos/${video.id}`); onRemoved(video.id); })} />}
      </div>
      <Notice problem={problem} />
      {isRemixing && <Remix video={video} onCreated={onCreated} onClose={() => setRemixing(false)} />}
    </>
  );
}

export function ClipCard({ video: initial, isLarge, onCreated, onRemoved }) {
  const [video, preview, setVideo] = useVideo(initial);
  const isOpen = !isFinal(video);
  return (
    <article class={`card clip ${isLarge ? "is-large" : ""}`} data-id={video.id} data-status={video.status}>
      {isLarge || isOpen || video.status === "failed" ? <Player video={video} preview={preview} /> : <Picture video={video} />}
      <div class="clip-text">
        <p class="prompt"><a href={`#/clips/${video.id}`}>{video.prompt || video.id}</a></p>
        <p class="facts"><State video={video} /><span>{video.size}</span><span>{video.seconds} s</span><span>{when(video.created_at)}</span>
          {isOpen && video.eta_seconds !== null && <span>about {seconds(video.eta_seconds)} left</span>}
          {video.status === "completed" && <span>{cost(video.cost)}</span>}</p>
        {isOpen && <Bar value={video.progress} label="Progress" />}
        {video.error && video.error.code !== "cancelled" && <Notice problem={video.error} />}
        <ClipActions video={video} setVideo={setVideo} onCreated={onCreated} onRemoved={onRemoved} />
      </div>
    </article>
  );
}
