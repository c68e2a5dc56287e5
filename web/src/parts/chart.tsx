// A chart over time, by uPlot: lines, or bands stacked to 100 %.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { cssColor, hatch } from "../palette";
import { useTheme } from "./theme";

const HEIGHT = 170;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300];

export interface Series {
  label: string;
  color: string;
  dash?: number[];
  hatched?: boolean;
  /** One value a time; null where there is none. */
  values: (number | null)[];
  title?: string;
}

interface Props {
  label: string;
  /** Seconds since the epoch. */
  times: number[];
  series: Series[];
  format: (value: number) => string;
  stacked?: boolean;
  max?: number;
}

export function Chart(props: Props) {
  const { label, times, series, format, stacked = false } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hovered, setHovered] = useState<number | null>(null);
  const theme = useTheme();
  const names = series.map((s) => s.label).join();

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const chart = new uPlot(options(props, element.clientWidth, setHovered), [[]], element);
    plot.current = chart;
    const resized = new ResizeObserver(() => {
      chart.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [names, stacked, theme]);

  useEffect(() => {
    plot.current?.setData(data(times, series, stacked));
  });

  const at = hovered !== null && hovered < times.length ? hovered : times.length - 1;
  return (
    <figure class="chart">
      <figcaption>
        {label}
        {hovered !== null && times[at] !== undefined && (
          <span class="dim"> {new Date(times[at] * 1000).toLocaleTimeString()}</span>
        )}
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={`${label} over the last minutes`} />
      <ul class="legend">
        {series.map((s) => (
          <li key={s.label} title={s.title}>
            <Swatch color={s.color} hatched={s.hatched} dash={s.dash} />
            {s.label} <b>{shown(s.values[at], format)}</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}

interface SwatchProps {
  color: string;
  hatched?: boolean | undefined;
  dash?: number[] | undefined;
}

/** A sample of how something is drawn. */
export function Swatch({ color, hatched, dash }: SwatchProps) {
  const fill = `var(${color})`;
  return (
    <svg class="swatch" viewBox="0 0 14 10" aria-hidden="true">
      {dash ? (
        <path d="M0 5H14" stroke={fill} stroke-width="2.5" stroke-dasharray={dash.join(" ")} />
      ) : (
        <rect width="14" height="10" fill={fill} />
      )}
      {hatched && <path d="M-1 11L5 -1M5 11L11 -1M11 11L17 -1" stroke="var(--panel)" />}
    </svg>
  );
}

function shown(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? "–" : format(value);
}

function data(times: number[], series: Series[], stacked: boolean): uPlot.AlignedData {
  if (!stacked) return [times, ...series.map((s) => s.values)];
  // Each line is the sum of its series and those below it; the highest is drawn first.
  const sums: number[][] = [];
  let below = times.map(() => 0);
  for (const { values } of series) {
    below = below.map((sum, i) => sum + (values[i] ?? 0));
    sums.unshift(below);
  }
  return [times, ...sums];
}

function options(props: Props, width: number, onHover: (at: number | null) => void): uPlot.Options {
  const { series, stacked = false, format, max } = props;
  const drawn = stacked ? [...series].reverse() : series;
  const axis = {
    stroke: cssColor("--dim"),
    grid: { stroke: cssColor("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 26, 0, 0], // half of a time label
    cursor: { y: false, drag: { x: false, y: false }, points: { show: !stacked } },
    scales: { y: { range: (_, __, top) => [0, max ?? (top > 0 ? top * 1.1 : 1)] } },
    axes: [
      { ...axis, space: 70, incrs: TIME_STEPS, values: "{HH}:{mm}:{ss}", size: 26 },
      { ...axis, size: 58, values: (_, ticks) => ticks.map((t) => (t === null ? "" : format(t))) },
    ],
    series: [
      {},
      ...drawn.map((s): uPlot.Series => {
        const color = cssColor(s.color);
        if (stacked) {
          return { width: 0, fill: s.hatched ? hatch(s.color) : color, points: { show: false } };
        }
        return { stroke: color, width: 1.75, dash: s.dash ?? [], points: { show: false } };
      }),
    ],
    hooks: { setCursor: [(u) => onHover(u.cursor.idx ?? null)] },
  };
}
