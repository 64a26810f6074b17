// One clip: its timeline, settings, cost, route and trace.
import { useEffect, useState } from "preact/hooks";
import { follow } from "./api.js";
import { ClipActions, toRequest } from "./clipcard.jsx";
import { cost, route, seconds, stage, when } from "./format.js";
import { useData, useVideo } from "./hooks.js";
import { Bar, Code, Loading, Notice, Page, State } from "./parts.jsx";
import { Player } from "./player.jsx";

function Timeline({ video }) {
  const [events, setEvents] = useState([]);
  // The past events, read again after each change: the next ones come by the stream of `useVideo`.
  useEffect(() => {
    const stop = new AbortController();
    const past = [];
    follow(
      video.id,
      (_name, data) => {
        if (data.is_replay) past.push(data);
        else {
          stop.abort();
          setEvents(past);
        }
      },
      stop.signal,
      0,
    );
    return () => stop.abort();
  }, [video.id, video.status, video.stage, video.attempt]);
  if (!events.length) return null;
  const first = events[0].at;
  const name = (event) =>
    event.status === "in_progress"
      ? stage(event.stage)
      : { queued: "Queued", completed: "Ready", failed: event.reason === "cancelled" ? "Cancelled" : "Failed" }[
          event.status
        ];
  return (
    <section class="card">
      <h2>Timeline</h2>
      <ol class="timeline">
        {events.map((event, index) => (
          <li key={index}>
            <span>
              {name(event)}
              {event.attempt > 1 ? `, attempt ${event.attempt}` : ""}
            </span>
            <span class="note">+{(event.at - first).toFixed(1)} s</span>
            <span class="note">{index + 1 < events.length ? seconds(events[index + 1].at - event.at) : ""}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

const shorten = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 77)}…` : text;
};

// Text, if someone changed the record in the database.
const toEntries = (details) => (typeof details === "string" ? [["details", details]] : Object.entries(details));

function Audit({ video }) {
  const { data, reload } = useData(`/v1/videos/${video.id}/audit`);
  useEffect(() => {
    reload();
  }, [video.status]);
  if (!data) return null;
  return (
    <section class="card">
      <h2>Audit record</h2>
      <ol class="plain audit">
        {data.data.map((each) => (
          <li key={each.number}>
            <details>
              <summary>
                {each.action}
                <span class="note"> {each.at === null ? "" : new Date(each.at * 1000).toLocaleString()}</span>
              </summary>
              <dl>
                {toEntries(each.details).map(([name, value]) => (
                  <div>
                    <dt>{name}</dt>
                    <dd>
                      {name === "prompt_hmac" ? (
                        <>
                          <code>{value}</code> <a href={`#/clips?prompt_hmac=${value}`}>Clips with this prompt</a>
                        </>
                      ) : (
                        shorten(value)
                      )}
                    </dd>
                  </div>
                ))}
                {each.clip_sha256 && (
                  <div>
                    <dt>clip_sha256</dt>
                    <dd>
                      <code>{each.clip_sha256}</code>
                    </dd>
                  </div>
                )}
                <div>
                  <dt>hash</dt>
                  <dd>
                    <code>{each.hash}</code>
                  </dd>
                </div>
              </dl>
            </details>
          </li>
        ))}
      </ol>
    </section>
  );
}

const ORIGINS = { edit: "Edit of", extend: "Continues" };

function Details({ initial }) {
  const [video, preview, setVideo] = useVideo(initial);
  const open = (created) => {
    location.hash = `#/clips/${created.id}`;
  };
  const facts = [
    ["Id", <code>{video.id}</code>],
    ["Model", video.model],
    ["Quality", video.quality],
    ["LoRA", video.lora],
    ["Size", video.size],
    ["Length", `${video.seconds} s, ${video.fps} frames per second`],
    ["Steps", video.steps],
    ["Guidance", video.guidance],
    ["Seed", video.seed !== null && String(video.seed)],
    ["Negative prompt", video.negative_prompt && <span dir="auto">{video.negative_prompt}</span>],
    ["Pixel format", video.pixel_format],
    ["Created", when(video.created_at)],
    ["Ready", video.completed_at && when(video.completed_at)],
    ["Deleted after", video.expires_at && when(video.expires_at)],
    [video.cost.is_measured ? "Cost" : "Expected cost", cost(video.cost)],
    ["Route", route(video)],
    ["Screening", video.screening],
    ["Trace", <code>{video.trace_id}</code>],
    ["Starts from", video.input_reference && "an image, stored with this clip"],
    [
      ORIGINS[video.source] || "Remix of",
      video.remixed_from_video_id && (
        <a href={`#/clips/${video.remixed_from_video_id}`}>{video.remixed_from_video_id}</a>
      ),
    ],
  ];
  return (
    <div class="detail" data-status={video.status}>
      <div class="card clip is-large">
        <Player video={video} preview={preview} />
        <div class="clip-text">
          <p class="prompt" dir="auto">
            {video.prompt}
          </p>
          <p class="facts">
            <State video={video} />
            {video.eta_seconds !== null && <span>about {seconds(video.eta_seconds)} left</span>}
          </p>
          {video.eta_seconds !== null && <Bar value={video.progress} label="Progress" />}
          <Notice problem={video.error?.code === "cancelled" ? null : video.error} />
          <ClipActions
            hasNotes
            video={video}
            setVideo={setVideo}
            onCreated={open}
            onRemoved={() => {
              location.hash = "#/clips";
            }}
          />
        </div>
      </div>
      <div class="stack">
        <section class="card">
          <h2>Settings</h2>
          <dl>
            {facts
              .filter(([, value]) => value)
              .map(([name, value]) => (
                <div>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </div>
              ))}
          </dl>
        </section>
        <Timeline video={video} />
        <Audit video={video} />
        <section class="card">
          <h2>Request</h2>
          <Code {...toRequest(video)} />
        </section>
      </div>
    </div>
  );
}

export function Clip({ id }) {
  const { data, error } = useData(`/v1/videos/${encodeURIComponent(id)}`);
  return (
    <Page
      title="Clip"
      actions={
        <a class="button" href="#/clips">
          All clips
        </a>
      }
    >
      <Notice problem={error} />
      {!data && !error && <Loading />}
      {data && <Details key={data.id} initial={data} />}
    </Page>
  );
}
