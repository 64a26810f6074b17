// The metrics reference, from this server: every number of the console names its metric here.
import { useEffect, useState } from "preact/hooks";
import { useData } from "./hooks.js";
import { Notice, Page, withCode } from "./parts.jsx";

const address = () => decodeURIComponent(location.hash.slice(1));

export function Metrics() {
  const { data, error } = useData("/docs/metrics.json");
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState(address());
  useEffect(() => {
    const update = () => setChosen(address());
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  useEffect(() => {
    if (data && chosen) document.getElementById(chosen)?.scrollIntoView({ block: "center" });
  }, [data, chosen]);
  const found = (data?.data || []).filter((metric) =>
    `${metric.name} ${metric.help}`.toLowerCase().includes(search.toLowerCase()),
  );
  const sources = [...new Set(found.map((metric) => metric.source))];
  return (
    <Page
      title="Metrics"
      lead="What servers and workers export for Prometheus on their management port."
      actions={
        <a class="button" href="/docs">
          API reference
        </a>
      }
    >
      <Notice problem={error} />
      <div class="filters" role="search">
        <input
          type="search"
          aria-label="Search metrics"
          placeholder="Search metrics"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
      </div>
      {data && found.length === 0 && <p class="note">No metric matches.</p>}
      {sources.map((source) => (
        <section class="card" aria-label={source}>
          <h2>{source[0].toUpperCase() + source.slice(1)}</h2>
          <dl class="properties metrics">
            {found
              .filter((metric) => metric.source === source)
              .map((metric) => (
                <div
                  id={metric.name}
                  class={metric.name === chosen ? "is-chosen" : undefined}
                  aria-current={metric.name === chosen ? "true" : undefined}
                >
                  <dt>
                    <a href={`#${metric.name}`}>
                      <code>{metric.name}</code>
                    </a>
                    <span class="note">{metric.kind}</span>
                  </dt>
                  <dd>
                    {withCode(metric.help)}
                    {metric.labels.length > 0 && <span class="note"> Labels: {metric.labels.join(", ")}.</span>}
                    {metric.dcgm && <span class="note"> DCGM: {metric.dcgm}.</span>}
                  </dd>
                </div>
              ))}
          </dl>
        </section>
      ))}
    </Page>
  );
}
