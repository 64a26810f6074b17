// Create: the form of a new clip, and the newest clips.
import { useEffect, useState } from "preact/hooks";
import { ClipCard } from "./clipcard.jsx";
import { Composer } from "./composer.jsx";
import { useData } from "./hooks.js";
import { Notice, Page } from "./parts.jsx";

const NEWEST = 6;

export function Create() {
  const { data: models, error } = useData("/v1/models");
  const { data: newest, error: problem } = useData(`/v1/videos?limit=${NEWEST}`);
  const [videos, setVideos] = useState(null);
  useEffect(() => {
    if (newest)
      setVideos((old) => [...(old || []), ...newest.data.filter(({ id }) => !old?.some((each) => each.id === id))]);
  }, [newest]);

  const add = (video) =>
    setVideos((old) => [video, ...(old || []).filter((each) => each.id !== video.id)].slice(0, 3 * NEWEST));
  return (
    <Page title="Create">
      <Notice problem={error || problem} />
      <div class="studio">
        {models ? <Composer models={models.data} onCreated={add} /> : <div class="card composer" />}
        <section class="feed" aria-label="Newest clips">
          {videos?.map((video, index) => (
            <ClipCard
              key={video.id}
              video={video}
              isLarge={index === 0}
              onCreated={add}
              onRemoved={(id) => setVideos((old) => old.filter((each) => each.id !== id))}
            />
          ))}
          {videos?.length === 0 && (
            <div class="empty card">
              <div class="blank" aria-hidden="true" />
              <p>Your clips appear here and play while they are still being decoded.</p>
            </div>
          )}
        </section>
      </div>
    </Page>
  );
}
