// How a request's life is drawn: by shape first, then by colour.
//   images     a band of half height
//   queue      a thin line
//   encode     a block of full height
//   load       a hatched block of half height
//   prefill    a block of full height, with its number of tokens
//   decode     a band of half height
//   preempted  a hatched block of full height
import { SPAN_COLORS, cssColor, hatch } from "../palette";
import type { Lane, Span, SpanKind } from "../types";

const HEIGHTS: Record<SpanKind, number> = {
  images: 0.5,
  queue: 0.14,
  encode: 0.86,
  load: 0.5,
  prefill: 0.86,
  decode: 0.5,
  preempted: 0.86,
};

export const SPAN_MEANINGS: Record<SpanKind, string> = {
  images: "fetching and resizing images",
  queue: "waiting",
  encode: "the tower reads images",
  load: "blocks come back from host memory",
  prefill: "a chunk of the prompt",
  decode: "writing the answer",
  preempted: "back in the queue, for blocks or for other clients",
};

/** What spans, the seams between them and their labels are painted with. */
type Paints = Record<SpanKind | "seam" | "label", string | CanvasPattern>;

export function spanPaints(): Paints {
  const paint = (kind: SpanKind) => cssColor(SPAN_COLORS[kind]);
  return {
    images: paint("images"),
    queue: cssColor("--dim"),
    encode: paint("encode"),
    load: hatch(SPAN_COLORS.load),
    prefill: paint("prefill"),
    decode: paint("decode"),
    preempted: hatch(SPAN_COLORS.preempted),
    seam: cssColor("--panel"),
    label: cssColor("--on-color"),
  };
}

/** Seconds to pixels. */
export type Scale = (time: number) => number;

export function drawLane(
  context: CanvasRenderingContext2D,
  lane: Lane,
  now: number,
  scale: Scale,
  top: number,
  height: number,
  paints: Paints,
): void {
  for (const span of lane.spans) drawSpan(context, span, now, scale, top, height, paints);
}

function drawSpan(
  context: CanvasRenderingContext2D,
  [kind, start, end, tokens]: Span,
  now: number,
  scale: Scale,
  top: number,
  height: number,
  paints: Paints,
): void {
  const left = scale(start);
  const right = scale(end ?? now);
  if (right < 0 || left > context.canvas.clientWidth) return;
  const width = Math.max(1.5, right - left);
  const tall = height * HEIGHTS[kind];
  context.fillStyle = paints[kind];
  context.fillRect(left, top + (height - tall) / 2, width, tall);
  if (kind !== "prefill") return;
  // A seam, so that chunks that touch can be counted.
  context.fillStyle = paints.seam;
  context.fillRect(left + width - 1, top, width > 4 ? 1 : 0, height);
  const label = String(tokens);
  if (width < 8 + label.length * 7) return;
  context.fillStyle = paints.label;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillText(label, Math.max(left, 0) + 4, top + height / 2 + 0.5);
}

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60];

/** Vertical lines at round times of `span` seconds, at most one each 90 pixels. */
export function drawGrid(
  context: CanvasRenderingContext2D,
  span: number,
  width: number,
  height: number,
  label: (seconds: number) => string,
): void {
  const step = STEPS.find((s) => (s / span) * width >= 90) ?? 60;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  const [line, text] = [cssColor("--line"), cssColor("--dim")];
  for (let i = 0; i * step <= span * 1.0001; i += 1) {
    const x = (i * step * width) / span;
    context.fillStyle = line;
    context.fillRect(Math.round(x), 0, 1, height);
    context.fillStyle = text;
    context.textAlign = x > width - 40 ? "right" : "left";
    context.fillText(label(i * step), x > width - 40 ? x - 3 : x + 3, 2);
  }
  context.textAlign = "left";
}
