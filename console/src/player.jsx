// Pictures of clips: the player, and thumbnails that play under the pointer.
import { useEffect, useRef, useState } from "preact/hooks";
import { getBlob, post, repeat } from "./api.js";
import { useVisible } from "./hooks.js";
import { canPlayLive, playLive } from "./live.js";

export const createLink = (id) => post(`/v1/videos/${id}/stream-link`);
export const streamLink = async (id) => (await createLink(id)).url;

const RENEW_MILLISECONDS = 60_000;
const LIVE_STAGES = new Set(["decode", "upload"]);

const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// The place of a picture that does not exist yet. It moves only while the clip is generated.
const Blank = ({ video }) => (
  <div class={`blank ${video.status === "in_progress" ? "is-working" : ""}`} aria-hidden="true" />
);

// Plays a video: its preview while it is generated, the live stream while it is decoded, then the stored clip.
export function Player({ video, preview }) {
  const [source, setSource] = useState(null);
  const element = useRef(null);
  const isDone = video.status === "completed";
  const isLive = video.status === "in_progress" && LIVE_STAGES.has(video.stage);
  const [width, height] = video.size.split("x").map(Number);
  const store = async () => setSource({ kind: "stored", url: await streamLink(video.id), at: Date.now() });
  const replace = () => store().catch(() => setSource(null));
  // A link expires while the tab stays open. A clip that cannot be played at all is not tried again at once.
  const renew = () => {
    if (source.kind === "stored" && Date.now() - source.at > RENEW_MILLISECONDS) replace();
  };

  useEffect(() => {
    if (isLive && !source) {
      if (canPlayLive()) setSource({ kind: "live", attempt: video.attempt });
      else
        streamLink(video.id).then(
          (url) => setSource({ kind: "live", url }),
          () => setSource(null),
        );
    }
    if (isDone && element.current?.ended) replace();
  }, [isDone, isLive]);
  const isStreaming = source?.kind === "live" && !source.url;
  useEffect(() => {
    if (!isStreaming) return undefined;
    const stop = new AbortController();
    // A stream that breaks belongs to a failed attempt: the next one, or the stored clip, replaces it.
    playLive(element.current, video.id, stop.signal).catch(() => stop.signal.aborted || setSource(null));
    return () => stop.abort();
  }, [isStreaming]);
  useEffect(() => {
    if (!isDone || source) return undefined;
    const stop = new AbortController();
    repeat(store, 0, stop.signal);
    return () => stop.abort();
  }, [isDone, source]);

  return (
    <div class={`player ${source || preview ? "" : "is-blank"}`} style={{ aspectRatio: `${width} / ${height}` }}>
      {source && video.status !== "failed" ? (
        <video
          key={source.kind}
          ref={element}
          src={source.url}
          poster={preview || undefined}
          muted
          autoPlay={source.kind === "live" || !prefersReducedMotion()}
          playsInline
          controls
          loop={source.kind === "stored" && !prefersReducedMotion()}
          onEnded={() => isDone && source.kind === "live" && replace()}
          onError={renew}
          aria-label={video.prompt ? `Clip: ${video.prompt}` : "Clip"}
          data-kind={source.kind}
        />
      ) : preview && video.status !== "failed" ? (
        <img src={preview} alt="Preview of the clip" />
      ) : (
        <Blank video={video} />
      )}
    </div>
  );
}

const thumbnails = new Map();
const MAX_THUMBNAILS = 600;
const HOVER_MILLISECONDS = 150;

function thumbnail(id) {
  if (!thumbnails.has(id)) {
    const picture = getBlob(`/v1/videos/${id}/content?variant=thumbnail`).then(URL.createObjectURL);
    thumbnails.set(id, picture);
    picture.catch(() => thumbnails.delete(id));
    if (thumbnails.size > MAX_THUMBNAILS) {
      const [oldest, url] = thumbnails.entries().next().value;
      thumbnails.delete(oldest);
      url.then(URL.revokeObjectURL, () => {});
    }
  }
  return thumbnails.get(id);
}

// The thumbnail of a clip, which plays under the pointer.
export function Picture({ video }) {
  const [element, isVisible] = useVisible();
  const [picture, setPicture] = useState(null);
  const [isPointedAt, setPointedAt] = useState(false);
  const [clip, setClip] = useState(null);
  const isReady = video.status === "completed";
  useEffect(() => {
    if (!isReady || !isVisible) return undefined;
    const stop = new AbortController();
    repeat(async () => setPicture(await thumbnail(video.id)), 0, stop.signal);
    return () => stop.abort();
  }, [isReady, isVisible]);
  useEffect(() => {
    if (!isPointedAt || !isReady || prefersReducedMotion()) return undefined;
    // A pointer that only passes plays nothing. It may also leave before the link is there.
    let isHere = true;
    const show = (url) => isHere && setClip(url);
    const timer = setTimeout(() => streamLink(video.id).then(show, () => {}), HOVER_MILLISECONDS);
    return () => {
      isHere = false;
      clearTimeout(timer);
      setClip(null);
    };
  }, [isPointedAt, isReady]);
  return (
    <div
      ref={element}
      class="picture"
      onPointerEnter={() => setPointedAt(true)}
      onPointerLeave={() => setPointedAt(false)}
    >
      {picture ? <img src={picture} alt="" onError={() => setPicture(null)} /> : <Blank video={video} />}
      {clip && <video src={clip} muted autoPlay loop playsInline aria-hidden="true" />}
    </div>
  );
}
