// Clips: the gallery of all clips, read page by page.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get, remove } from "./api.js";
import { isFinal, when } from "./format.js";
import { useVideo } from "./hooks.js";
import { Bar, Notice, Page, Picture, State, SureButton } from "./parts.jsx";

const PAGE_SIZE = 24;

function Tile({ video: initial, isSelected, onSelect }) {
  const [video] = useVideo(initial);
  return (
    <li class={`gallery-tile ${isSelected ? "is-selected" : ""}`}>
      <a href={`#/clips/${video.id}`} class="tile-link">
        <Picture video={video} />
        <span class="prompt">{video.prompt || video.id}</span>
        <span class="facts">{video.status !== "completed" && <State video={video} />}<span>{video.model}</span><span>{when(video.created_at)}</span></span>
        {!isFinal(video) && <Bar value={video.progress} label="Progress" />}
      </a>
      <label class="select"><input type="checkbox" checked={isSelected} onChange={() => onSelect(video.id)} aria-label={`Select ${video.prompt || video.id}`} /></label>
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

function matches(video, filter) {
  const text = filter.text.toLowerCase();
  const isState = !filter.state || (filter.state === "open" ? !isFinal(video) : video.status === filter.state);
  return isState && (!filter.model || video.model === filter.model) && (!text || `${video.prompt} ${video.id}`.toLowerCase().includes(text));
}

export function Clips() {
  const [videos, setVideos] = useState([]);
  const [cursor, setCursor] = useState({ hasMore: true });
  const [filter, setFilter] = useState({ text: "", state: "", model: "" });
  const [selected, setSelected] = useState(new Set());
  const [problem, setProblem] = useState(null);
  const end = useRef(null);
  const isLoading = useRef(false);
  const more = useCallback(async () => {
    if (isLoading.current || !cursor.hasMore) return;
    isLoading.current = true;
    try {
      const page = await get(`/v1/videos?limit=${PAGE_SIZE}${cursor.after ? `&after=${cursor.after}` : ""}`);
      setVideos((old) => [...old, ...page.data]);
      setCursor({ after: page.last_id, hasMore: page.has_more });
    } catch (error) {
      setProblem(error);
      setCursor((old) => ({ ...old, hasMore: false }));
    } finally {
      isLoading.current = false;
    }
  }, [cursor]);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => entries[0].isIntersecting && more(), { rootMargin: "600px" });
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [more]);

  const change = (name) => (event) => { const { value } = event.currentTarget; setFilter((old) => ({ ...old, [name]: value })); };
  const select = (id) => setSelected((old) => { const copy = new Set(old); if (!copy.delete(id)) copy.add(id); return copy; });
  const removeSelected = async () => {
    for (const id of selected) {
      try {
        await remove(`/v1/videos/${id}`);
        setVideos((old) => old.filter((video) => video.id !== id));
        setSelected((old) => { const copy = new Set(old); copy.delete(id); return copy; });
      } catch (error) {
        setProblem(error);
      }
    }
  };
  const shown = videos.filter((video) => matches(video, filter));
  const models = [...new Set(videos.map((video) => video.model))];
  return (
    <Page title="Clips" actions={selected.size > 0 && <><span>{selected.size} selected</span><button type="button" onClick={() => setSelected(new Set())}>Clear</button>
      <SureButton label="Delete" sure={`Delete ${selected.size} for good`} onSure={removeSelected} /></>}>
      <div class="filters" role="search">
        <input type="search" aria-label="Search prompts" placeholder="Search prompts" value={filter.text} onInput={change("text")} />
        <select aria-label="State" value={filter.state} onChange={change("state")}><option value="">All states</option><option value="completed">Ready</option><option value="open">In progress</option><option value="failed">Failed</option></select>
        <select aria-label="Model" value={filter.model} onChange={change("model")}><option value="">All models</option>{models.map((name) => <option value={name}>{name}</option>)}</select>
      </div>
      <Notice problem={problem} />
      <ul class="gallery" onKeyDown={moveFocus}>{shown.map((video) => <Tile key={video.id} video={video} isSelected={selected.has(video.id)} onSelect={select} />)}</ul>
      {!cursor.hasMore && shown.length === 0 && <p class="note">{videos.length ? "No clip matches." : "There are no clips yet."} <a href="#/">Create one</a></p>}
      <div ref={end} class="end" />
    </Page>
  );
}
