// The plot itself: both axes in powers of ten, a roof a type, a numbered point an operation.
import { useEffect, useRef, useState } from "preact/hooks";
import { percent, short } from "../format";
import type { Limits, OpLine } from "../types";

const LEFT = 56;
const BOTTOM = 38;
const TOP = 26;
const RIGHT = 14;
const NUMBERED = 12;
const DASHES = ["", "8 4", "2 4", "8 3 2 3", "12 4"];

interface Props {
  ops: OpLine[];
  limits: Limits | null;
  marked: number | null;
  onMark: (at: number | null) => void;
}

export function RooflinePlot({ ops, limits, marked, onMark }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const resized = new ResizeObserver(() => setWidth(element.clientWidth));
    resized.observe(element);
    return () => resized.disconnect();
  }, []);
  const height = width < 560 ? 320 : 420;
  // A point without arithmetic, such as a copy, has no place on a logarithmic axis.
  const drawn = ops.map((op, at) => ({ op, at })).filter(({ op }) => op.gflop_s > 0);
  const axes = makeAxes(
    drawn.map(({ op }) => op),
    limits,
    width,
    height,
  );
  const shown = marked === null ? null : ops[marked];
  return (
    <div ref={box} class="roofline">
      {width > 0 && (
        <svg width={width} height={height} role="img" aria-label={describe(ops)}>
          <Grid axes={axes} />
          {limits && <Roofs axes={axes} limits={limits} ops={ops} />}
          {/* The largest first, so that small ones stay in sight. */}
          {drawn.map(({ op, at }) => (
            <Mark
              key={at}
              op={op}
              number={at + 1}
              axes={axes}
              dimmed={marked !== null && marked !== at}
              onMark={(on) => onMark(on ? at : null)}
            />
          ))}
        </svg>
      )}
      <p class="told" role="status">
        {shown
          ? tell(shown)
          : "Circles are bound by memory, squares by arithmetic, diamonds by neither; the larger, the more of the time."}
      </p>
    </div>
  );
}

interface Axes {
  x: (intensity: number) => number;
  y: (gflops: number) => number;
  decadesX: number[];
  decadesY: number[];
  width: number;
  height: number;
}

function makeAxes(ops: OpLine[], limits: Limits | null, width: number, height: number): Axes {
  const peaks = Object.values(limits?.flops_s ?? {}).map((peak) => peak / 1e9);
  const ridges = limits ? peaks.map((peak) => (peak * 1e9) / limits.bandwidth_bytes_s) : [];
  const [x0, x1] = decades([...ops.map((op) => op.intensity), ...ridges.map((r) => r * 3)]);
  const [y0, y1] = decades([...ops.map((op) => op.gflop_s), ...peaks.map((p) => p * 1.2)]);
  const scale = (from: number, to: number, start: number, end: number) => (value: number) =>
    start + ((Math.log10(value) - from) / (to - from)) * (end - start);
  const range = (from: number, to: number) =>
    Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i));
  return {
    x: scale(x0, x1, LEFT, width - RIGHT),
    y: scale(y0, y1, height - BOTTOM, TOP),
    decadesX: range(x0, x1),
    decadesY: range(y0, y1),
    width,
    height,
  };
}

/** The powers of ten around `values`. */
function decades(values: number[]): [number, number] {
  const logs = values.filter((v) => v > 0).map(Math.log10);
  if (!logs.length) return [0, 1];
  const from = Math.floor(Math.min(...logs));
  return [from, Math.max(from + 1, Math.ceil(Math.max(...logs)))];
}

function Grid({ axes }: { axes: Axes }) {
  const { x, y, width, height, decadesX, decadesY } = axes;
  return (
    <g class="grid-lines">
      {decadesX.map((v) => (
        <g key={v}>
          <line x1={x(v)} x2={x(v)} y1={TOP} y2={height - BOTTOM} />
          <text x={x(v)} y={height - BOTTOM + 15} text-anchor="middle">
            {power(v)}
          </text>
        </g>
      ))}
      {decadesY.map((v) => (
        <g key={v}>
          <line x1={LEFT} x2={width - RIGHT} y1={y(v)} y2={y(v)} />
          <text x={LEFT - 6} y={y(v) + 4} text-anchor="end">
            {power(v)}
          </text>
        </g>
      ))}
      <text x={width - RIGHT} y={height - 6} text-anchor="end">
        operations/byte
      </text>
      <text x={4} y={TOP - 14}>
        GFLOP/s
      </text>
    </g>
  );
}

function power(value: number): string {
  return value >= 1e-2 && value <= 1e4
    ? String(Number(value.toPrecision(1)))
    : value.toExponential(0);
}

function Roofs({ axes, limits, ops }: { axes: Axes; limits: Limits; ops: OpLine[] }) {
  const { x, y, decadesX } = axes;
  const first = decadesX[0] ?? 1;
  const last = decadesX.at(-1) ?? 1;
  const used = new Set(ops.map((op) => op.dtype));
  const all = Object.entries(limits.flops_s)
    .map(([dtype, peak]): [string, number] => [dtype, peak / 1e9])
    .sort((a, b) => b[1] - a[1]);
  const roofs = all.filter(([dtype]) => used.has(dtype));
  const shown = roofs.length ? roofs : all;
  const top = shown[0]?.[1] ?? 0;
  const bandwidth = limits.bandwidth_bytes_s / 1e9;
  return (
    <g class="roofs">
      <line x1={x(first)} y1={y(first * bandwidth)} x2={x(top / bandwidth)} y2={y(top)} />
      {shown.map(([dtype, peak], i) => (
        <g key={dtype}>
          <line
            x1={x(peak / bandwidth)}
            x2={x(last)}
            y1={y(peak)}
            y2={y(peak)}
            stroke-dasharray={DASHES[i % DASHES.length]}
          />
          <text x={x(last)} y={y(peak) - 5} text-anchor="end">
            {`${dtype} ${short(peak)}`}
          </text>
        </g>
      ))}
    </g>
  );
}

interface MarkProps {
  op: OpLine;
  number: number;
  axes: Axes;
  dimmed: boolean;
  onMark: (on: boolean) => void;
}

function Mark({ op, number, axes, dimmed, onMark }: MarkProps) {
  const x = axes.x(op.intensity);
  const y = axes.y(op.gflop_s);
  const radius = 4 + 18 * Math.sqrt(op.share);
  const side = radius * 1.78; // of a square of the circle's area
  const turn = op.bound === "overhead" ? `rotate(45 ${x} ${y})` : undefined;
  const name = `point ${op.bound} ${dimmed ? "dimmed" : ""}`;
  return (
    <g class={name} onMouseEnter={() => onMark(true)} onMouseLeave={() => onMark(false)}>
      {op.bound === "memory" ? (
        <circle cx={x} cy={y} r={radius} />
      ) : (
        <rect x={x - side / 2} y={y - side / 2} width={side} height={side} transform={turn} />
      )}
      {number <= NUMBERED && (
        <text x={radius < 8 ? x + radius + 6 : x} y={y + 4} text-anchor="middle">
          {number}
        </text>
      )}
    </g>
  );
}

function tell(op: OpLine): string {
  const limit = op.of_limit === null ? "" : `, ${percent(op.of_limit)} of its limit`;
  const speed = `${short(op.gb_s)} GB/s, ${short(op.gflop_s)} GFLOP/s`;
  return `${op.name} ${op.module}: ${percent(op.share)} of the time, ${speed}${limit}.`;
}

function describe(ops: OpLine[]): string {
  const top = ops.slice(0, 3).map((op) => `${op.name} ${op.module} ${percent(op.share)}`);
  return `Roofline of ${ops.length} operations; most time in ${top.join(", ")}`;
}
