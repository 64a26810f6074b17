// Shared state of pages: the address, data that is read again, and the videos that are followed.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get, repeat, track } from "./api.js";
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

// Data of a path, read again at an interval while the tab is visible, and after an outage.
export function useData(path, everySeconds) {
  const [state, setState] = useState({});
  const load = useCallback(
    async (signal) => {
      try {
        const data = await get(path, { signal });
        setState({ data });
      } catch (error) {
        if (!signal?.aborted) setState((old) => ({ ...old, error }));
        throw error;
      }
    },
    [path],
  );
  useEffect(() => {
    const stop = new AbortController();
    repeat(load, everySeconds, stop.signal);
    return () => stop.abort();
  }, [load, everySeconds]);
  // A failure is shown; the next reading may succeed.
  return { ...state, reload: () => load().catch(() => {}) };
}

let models;

// The models by name, read once per tab: which actions a clip has depends on its model.
export function useModels() {
  const [found, setFound] = useState({});
  useEffect(() => {
    const stop = new AbortController();
    const read = async () => {
      models ||= get("/v1/models");
      try {
        setFound(Object.fromEntries((await models).data.map((model) => [model.id, model])));
      } catch (error) {
        models = null;
        throw error;
      }
    };
    repeat(read, 0, stop.signal);
    return () => stop.abort();
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
    track(
      video,
      (name, data) => {
        if (name === "preview") setPreview(data.image);
        else if (name === "gone")
          setVideo((old) => ({
            ...old,
            status: "failed",
            error: { code: "deleted", message: "The video was deleted." },
          }));
        else if (!data.is_replay) setVideo((old) => ({ ...old, ...data }));
      },
      stop.signal,
    );
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
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setVisible(true),
      { rootMargin: "300px" },
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, isVisible];
}
