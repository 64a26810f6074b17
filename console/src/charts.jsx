// Plots over time: lines and stacked bars with axes, as SVG that scales with the page.
import { useState } from "preact/hooks";
import { count } from "./format.js";

const HEIGHT = 100;
const TICKS = 3;
const LABELS = 5;

// The smallest of 1, 2, 4, 6 x 10^n that is not below the value: the top of an axis whose half is round, too.
export function roundUpAxis(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 10].find((step) => step * power >= value * 0.999999);
}

const clock = (unix, hasSeconds) =>
  new Date(unix * 1000).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
    ...(hasSeconds && { second: "2-digit" }),
  });
const day = (unix, zone) =>
  new Date(unix * 1000).toLocaleDateString([], { month: "short", day: "numeric", timeZone: zone });

// The time axis: every so many times a label, below its point or bar. Clock times within two days, with seconds within
// ten minutes, else days.
function TimeAxis({ times, width, zone, isBars }) {
  const span = times.at(-1) - times[0];
  const text = (unix) => (width >= 86400 || span > 172800 ? day(unix, zone) : clock(unix, span < 600));
  const last = times.length - 1,
    step = Math.max(Math.ceil(last / (LABELS - 1)), 1);
  const left = (index) => (isBars ? (100 * (index + 0.5)) / times.length : (100 * index) / Math.max(last, 1));
  const shift = (index) => (isBars || (index > 0 && index < last) ? "-50%" : index ? "-100%" : "0");
  return (
    <ul class="axis-x" aria-hidden="true">
      {times.map(
        (unix, index) =>
          index % step === 0 && (
            <li style={{ left: `${left(index)}%`, transform: `translateX(${shift(index)})` }}>{text(unix)}</li>
          ),
      )}
    </ul>
  );
}

// The colour of a series: its own, or that of its place.
const tone = (series, number) => (series[number].tone ? `is-${series[number].tone}` : `is-${number}`);

const sumAt = (series, index) => series.reduce((sum, each) => sum + (each.values[index] || 0), 0);

function Lines({ series, top }) {
  const x = (index, values) => (100 * index) / Math.max(values.length - 1, 1);
  const y = (value) => HEIGHT - HEIGHT * Math.min(value / top, 1);
  return series.map(({ name, values }, number) => {
    // A gap where nothing was measured; a lone point is drawn as a dot.
    const parts = [];
    let part = [];
    values.forEach((value, index) => {
      if (value === null) {
        if (part.length) parts.push(part);
        part = [];
      } else part.push([x(index, values), y(value)]);
    });
    if (part.length) parts.push(part);
    const text = (points) =>
      (points.length === 1 ? [points[0], points[0]] : points)
        .map((point) => point.map((each) => each.toFixed(2)).join(","))
        .join(" ");
    const area = (points) => (
      <polygon
        points={`${points[0][0].toFixed(2)},${HEIGHT} ${text(points)} ${points.at(-1)[0].toFixed(2)},${HEIGHT}`}
      />
    );
    return (
      <g key={name} class={tone(series, number)}>
        {series.length === 1 && parts.filter((points) => points.length > 1).map(area)}
        {parts.map((points) => (
          <polyline class={points.length === 1 ? "is-point" : undefined} points={text(points)} />
        ))}
      </g>
    );
  });
}

function Bars({ series, top }) {
  const number = series[0].values.length;
  const width = 100 / number;
  return series[0].values.map((_, index) => {
    let below = 0;
    return series.map(({ values }, which) => {
      const height = (HEIGHT * (values[index] || 0)) / top;
      below += height;
      return (
        height > 0 && (
          <rect
            class={tone(series, which)}
            x={(index * width + width * 0.12).toFixed(2)}
            width={(width * 0.76).toFixed(2)}
            y={(HEIGHT - below).toFixed(2)}
            height={height.toFixed(2)}
          />
        )
      );
    });
  });
}

// `series` is [{name, values}], one value or null per time; `isBars` stacks them.
export function Chart({ times, series, label, format, isBars, width = 0, zone, max, empty = "Nothing to show yet." }) {
  const [at, setAt] = useState(null);
  const isEmpty = times.length === 0 || series.every(({ values }) => values.every((value) => !value));
  if (isEmpty && empty) return <p class="note chart-empty">{empty}</p>;
  const highest = isBars
    ? Math.max(...times.map((_, index) => sumAt(series, index)))
    : Math.max(...series.flatMap(({ values }) => values.map((value) => value || 0)));
  // Half a job is no tick: the axis of a count ends at 2 or more.
  const top = max || roundUpAxis(format === count ? Math.max(highest, 2) : highest);
  const ticks = Array.from({ length: TICKS }, (_, index) => (top * (TICKS - 1 - index)) / (TICKS - 1));
  const last = (values) => values.findLast((value) => value !== null);
  const summary = series
    .map(
      ({ name, values }) =>
        `${name} ${isBars ? format(values.reduce((sum, value) => sum + (value || 0), 0)) : format(last(values) ?? null)}`,
    )
    .join(", ");
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    setAt(
      Math.min(
        Math.max(isBars ? Math.floor(share * times.length) : Math.round(share * (times.length - 1)), 0),
        times.length - 1,
      ),
    );
  };
  const when = (unix) => (width >= 86400 ? day(unix, zone) : `${day(unix, zone)}, ${clock(unix)}`);
  return (
    <figure class="chart">
      <figcaption>
        {at === null ? (
          series.length > 1 &&
          series.map(({ name }, number) => <span class={`legend ${tone(series, number)}`}>{name}</span>)
        ) : (
          <>
            <strong>{when(times[at])}</strong>
            {series.map(({ name, values }, number) => (
              <span class={`legend ${tone(series, number)}`}>
                {series.length > 1 && `${name} `}
                {format(values[at] ?? null)}
              </span>
            ))}
          </>
        )}
      </figcaption>
      <ul class="axis-y" aria-hidden="true">
        {ticks.map((tick) => (
          <li>{format(tick)}</li>
        ))}
      </ul>
      <svg
        viewBox={`0 0 100 ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${label}: ${summary}`}
        onPointerMove={point}
        onPointerLeave={() => setAt(null)}
      >
        {ticks.map((_, index) => (
          <line
            class="grid-line"
            x1="0"
            x2="100"
            y1={(HEIGHT * index) / (TICKS - 1)}
            y2={(HEIGHT * index) / (TICKS - 1)}
          />
        ))}
        {isBars ? <Bars series={series} top={top} /> : <Lines series={series} top={top} />}
        {at !== null && !isBars && (
          <line
            class="cursor"
            x1={(100 * at) / Math.max(times.length - 1, 1)}
            x2={(100 * at) / Math.max(times.length - 1, 1)}
            y1="0"
            y2={HEIGHT}
          />
        )}
      </svg>
      <TimeAxis times={times} width={width} zone={zone} isBars={isBars} />
    </figure>
  );
}
