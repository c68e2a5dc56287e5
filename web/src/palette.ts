// Colours that stay apart for colour-blind eyes (after Okabe and Ito); CSS holds their values,
// for light and dark. Where two meet, hatching or a label tells them apart as well.
import type { BlockKind, SpanKind } from "./types";

export const PART_COLORS: Record<string, string> = {
  model: "--blue",
  sample: "--orange",
  prepare: "--green",
  schedule: "--red",
  update: "--pink",
  receive: "--sky",
  core_send: "--yellow",
  idle: "--idle",
  http: "--blue",
  tokenize: "--orange",
  detokenize: "--green",
  send: "--sky",
};

/** Every other part of a stack is hatched. */
export const HATCHED_PARTS = new Set(["sample", "schedule", "receive", "idle", "tokenize", "send"]);

const OWNER_COLORS = ["--blue", "--orange", "--green", "--red", "--pink", "--sky", "--yellow"];

export const SPAN_COLORS: Record<SpanKind, string> = {
  images: "--sky",
  queue: "--idle",
  encode: "--orange",
  prefill: "--blue",
  decode: "--green",
  preempted: "--red",
  load: "--pink",
};

export const BLOCK_NAMES: Record<BlockKind, string> = {
  owned: "one request's",
  shared: "shared",
  cached: "cached",
  free: "free",
};

/** Colours of requests: each keeps its own while it holds blocks, and the rarest goes to the next. */
export class OwnerColors {
  private readonly colors = new Map<string, string>();

  /** To be called with all who hold blocks now. */
  update(owners: readonly string[]): void {
    const alive = new Set(owners);
    for (const id of this.colors.keys()) if (!alive.has(id)) this.colors.delete(id);
    for (const id of owners) if (!this.colors.has(id)) this.colors.set(id, this.rarest());
  }

  /** The name of a CSS variable. */
  of(id: string | undefined): string {
    return this.colors.get(id ?? "") ?? "--blue";
  }

  private rarest(): string {
    const used = [...this.colors.values()];
    const uses = (color: string) => used.filter((other) => other === color).length;
    return OWNER_COLORS.reduce((best, color) => (uses(color) < uses(best) ? color : best));
  }
}

export function cssColor(variable: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

/** `variable`'s colour with stripes of the background, for a canvas. */
export function hatch(variable: string, background = "--panel"): CanvasPattern | string {
  const color = cssColor(variable);
  const size = 6 * Math.ceil(devicePixelRatio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const context = tile.getContext("2d");
  if (!context) return color;
  context.fillStyle = color;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = cssColor(background);
  context.lineWidth = size / 5;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    context.moveTo(shift - 1, size + 1);
    context.lineTo(shift + size + 1, -1);
  }
  context.stroke();
  return context.createPattern(tile, "repeat") ?? color;
}
