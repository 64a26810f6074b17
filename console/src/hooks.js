// Shared state of pages: the address, data that is read again, and the videos that are followed.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get, track } from "./api.js";
import { isFinal } from "./format.js";

export function useAddress() {
  const [address, setAddress] = useState(location.hash.slice(1) || "/");
  useEffect(() => {
    const update = () => setAddress(location.hash.slice(1) || "/");
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return address;
}

// Data of a path, read again at an interval while the tab is visible.
export function useData(path, everySeconds) {
  const [state, setState] = useState({});
  const load = useCallback(async () => {
    try {
      const data = await get(path);
      setState({ data });
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  }, [path]);
  useEffect(() => {
    load();
    if (!everySeconds) return undefined;
    const timer = setInterval(() => document.hidden || load(), everySeconds * 1000);
    return () => clearInterval(timer);
  }, [load, everySeconds]);
  return { ...state, reload: load };
}

let models;

// The models by name, read once per tab: which actions a clip has depends on its model.
export function useModels() {
  const [found, setFound] = useState({});
  useEffect(() => {
    models ||= get("/v1/models");
    models.then((answer) => setFound(Object.fromEntries(answer.data.map((model) => [model.id, model]))), () => { models = null; });
  }, []);
  return found;
}

// A video that is updated by events until its end.
export function useVideo(initial) {
  const [video, setVideo] = useState(initial);
  const [preview, setPreview] = useState(null);
  const isOver = isFinal(video);
  useEffect(() => {
    if (isOver) return undefined;
    const stop = new AbortController();
    track(video, (name, data) => {
      if (name === "preview") setPreview(data.image);
      else if (name === "gone") setVideo((old) => ({ ...old, status: "failed", error: { code: "deleted", message: "The video was deleted." } }));
      else if (!data.is_replay) setVideo((old) => ({ ...old, ...data }));
    }, stop.signal);
    return () => stop.abort();
  }, [video.id, isOver]);
  return [video, preview, setVideo];
}

export function useDebounced(value, milliseconds) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

export function useVisible() {
  const element = useRef(null);
  const [isVisible, setVisible] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && setVisible(true), { rootMargin: "300px" });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, isVisible];
}
