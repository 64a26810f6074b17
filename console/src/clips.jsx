// Clips: the gallery of all clips, read page by page.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, remove, repeat } from "./api.js";
import { isFinal, when } from "./format.js";
import { useData, useVideo } from "./hooks.js";
import { Bar, ConfirmButton, Loading, Notice, Page, State } from "./parts.jsx";
import { Picture } from "./player.jsx";

const PAGE_SIZE = 24;

function Tile({ video: initial, isSelected, onSelect }) {
  const [video] = useVideo(initial);
  return (
    <li class={`gallery-tile ${isSelected ? "is-selected" : ""}`}>
      <a href={`#/clips/${video.id}`} class="tile-link">
        <Picture video={video} />
        <span class="prompt" dir="auto">
          {video.prompt || video.id}
        </span>
        <span class="facts">
          {video.status !== "completed" && <State video={video} />}
          <span>{video.model}</span>
          <span>{when(video.created_at)}</span>
        </span>
        {!isFinal(video) && <Bar value={video.progress} label="Progress" />}
      </a>
      <label class="select">
        <input
          type="checkbox"
          checked={isSelected}
          onChange={() => onSelect(video.id)}
          aria-label={`Select ${video.prompt || video.id}`}
        />
      </label>
    </li>
  );
}

function moveFocus(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const rows = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = [...event.currentTarget.querySelectorAll(".tile-link")];
  const here = links.indexOf(document.activeElement);
  if (here < 0 || (!step && !rows)) return;
  event.preventDefault();
  const perRow = links.filter((link) => link.offsetTop === links[0].offsetTop).length;
  links[here + (step || rows * perRow)]?.focus();
}

const DIGEST = /^[0-9a-f]{64}$/;

// The server selects by model, state, date and the digest of a prompt. Prompts are encrypted there: it finds
// equal ones, and the text of loaded ones is searched here.
function toQuery({ state, model, day, digest }) {
  const query = new URLSearchParams({ limit: PAGE_SIZE });
  if (digest) query.set("prompt_hmac", digest);
  if (state) query.set("status", state);
  if (model) query.set("model", model);
  if (day) {
    const begin = new Date(`${day}T00:00:00`);
    const end = new Date(begin);
    end.setDate(end.getDate() + 1); // 23 or 25 hours later when the clocks change
    // A year that is being typed begins with 0002.
    query.set("created_from", Math.max(begin / 1000, 0));
    query.set("created_before", Math.max(end / 1000, 0));
  }
  return query;
}

const isFound = (video, text) => !text || `${video.prompt} ${video.id}`.toLowerCase().includes(text.toLowerCase());

// The clips that one question of the server finds, as far as they are read. A page that was asked for by another
// question, or twice, is dropped.
const open = (filter) => ({
  filter,
  question: toQuery(filter).toString(),
  videos: [],
  after: null,
  hasMore: true,
  selected: new Set(),
  problem: null,
});
const add = (gallery, { question, after }, page) =>
  gallery.question !== question || gallery.after !== after
    ? gallery
    : {
        ...gallery,
        videos: [...gallery.videos, ...page.data],
        after: page.last_id,
        hasMore: page.has_more,
        problem: null,
      };
const without = (set, id) => new Set([...set].filter((each) => each !== id));

export function Clips({ query }) {
  const [gallery, setGallery] = useState(() =>
    open({ text: "", state: "", model: "", day: "", digest: new URLSearchParams(query).get("prompt_hmac") || "" }),
  );
  const { data: models } = useData("/v1/models");
  const end = useRef(null);
  const { filter, question, videos, after, hasMore, selected, problem } = gallery;
  const setProblem = (error) => setGallery((old) => ({ ...old, problem: error }));
  // The next page, when the end comes into view; ended by another filter. After an outage, it is read again.
  useEffect(() => {
    if (!hasMore) return undefined;
    const stop = new AbortController();
    const more = async (signal) => {
      try {
        const page = await get(`/v1/videos?${question}${after ? `&after=${after}` : ""}`, { signal });
        setGallery((old) => add(old, { question, after }, page));
      } catch (error) {
        setGallery((old) => (signal.aborted || old.question !== question ? old : { ...old, problem: error }));
        throw error;
      }
    };
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        repeat(more, 0, stop.signal);
      },
      { rootMargin: "600px" },
    );
    observer.observe(end.current);
    return () => {
      observer.disconnect();
      stop.abort();
    };
  }, [question, after, hasMore]);

  const choose = (changes) =>
    setGallery((old) => {
      const chosen = open({ ...old.filter, ...changes });
      return chosen.question === old.question ? { ...old, filter: chosen.filter } : chosen;
    });
  const change = (name) => (event) => choose({ [name]: event.currentTarget.value });
  const type = (event) => {
    const text = event.currentTarget.value;
    choose(DIGEST.test(text.trim()) ? { text: "", digest: text.trim() } : { text });
  };
  const findAll = async (event) => {
    event.preventDefault();
    if (!filter.text.trim()) return;
    try {
      choose({ text: "", digest: (await post("/v1/videos/prompt-digest", { prompt: filter.text })).prompt_hmac });
    } catch (error) {
      setProblem(error);
    }
  };
  const select = (id) =>
    setGallery((old) => ({
      ...old,
      selected: old.selected.has(id) ? without(old.selected, id) : new Set([...old.selected, id]),
    }));
  const removeSelected = async () => {
    for (const id of selected) {
      try {
        await remove(`/v1/videos/${id}`);
        setGallery((old) => ({
          ...old,
          videos: old.videos.filter((video) => video.id !== id),
          selected: without(old.selected, id),
        }));
      } catch (error) {
        setProblem(error);
      }
    }
  };
  const shown = videos.filter((video) => isFound(video, filter.text));
  const isFiltered = Object.values(filter).some(Boolean);
  return (
    <Page
      title="Clips"
      actions={
        selected.size > 0 && (
          <>
            <span>{selected.size} selected</span>
            <button type="button" onClick={() => setGallery((old) => ({ ...old, selected: new Set() }))}>
              Clear
            </button>
            <ConfirmButton
              label="Delete"
              confirmLabel={`Delete ${selected.size} permanently`}
              onConfirm={removeSelected}
            />
          </>
        )
      }
    >
      <form class="filters" role="search" onSubmit={findAll}>
        <input
          type="search"
          dir="auto"
          aria-label="Search prompts"
          aria-describedby="search-hint"
          placeholder="Search prompts, or paste a digest"
          value={filter.text}
          onInput={type}
        />
        <select aria-label="State" value={filter.state} onChange={change("state")}>
          <option value="">All states</option>
          <option value="completed">Ready</option>
          <option value="open">In progress</option>
          <option value="failed">Failed</option>
        </select>
        <select aria-label="Model" value={filter.model} onChange={change("model")}>
          <option value="">All models</option>
          {models?.data.map(({ id }) => (
            <option value={id}>{id}</option>
          ))}
        </select>
        <input type="date" aria-label="Day" value={filter.day} onChange={change("day")} />
        <button type="submit" disabled={!filter.text.trim()}>
          Find exact prompt
        </button>
        <p class="hint" id="search-hint">
          Typing filters the clips loaded on this page. “Find exact prompt” searches all clips by prompt digest, because
          the server stores prompts encrypted.
        </p>
      </form>
      {filter.digest && (
        <p class="notice chosen">
          Clips with the prompt digest <code>{filter.digest.slice(0, 16)}…</code>
          <button type="button" onClick={() => choose({ digest: "" })}>
            Show all clips
          </button>
        </p>
      )}
      <Notice problem={problem} />
      <ul class="gallery" onKeyDown={moveFocus}>
        {shown.map((video) => (
          <Tile key={video.id} video={video} isSelected={selected.has(video.id)} onSelect={select} />
        ))}
      </ul>
      {!hasMore && shown.length === 0 && !problem && (
        <div class="empty card">
          <p>
            {isFiltered ? "No clip matches." : "There are no clips yet."} <a href="#/">Create one</a>
          </p>
        </div>
      )}
      {hasMore && videos.length === 0 && !problem && <Loading />}
      <div ref={end} class="end" />
    </Page>
  );
}
