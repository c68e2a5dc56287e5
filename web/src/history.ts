// Snapshots hold totals; charts want rates. A sample is what one snapshot adds to the one before.
import type { Snapshot } from "./types";

export const HISTORY_SECONDS = 300;

/** The parts of the core's time, which add up to all of it, and those of the API's process. */
export const CORE_PARTS = [
  "model",
  "sample",
  "prepare",
  "schedule",
  "update",
  "receive",
  "core_send",
  "idle",
] as const;
export const FRONT_PARTS = ["http", "tokenize", "detokenize", "send"] as const;

export interface Sample {
  /** Seconds since the epoch. */
  wall: number;
  now: number;
  generated: number;
  prompted: number;
  steps: number;
  running: number;
  waiting: number;
  kvUsage: number;
  preemptions: number;
  /** Seconds per second, by part. */
  split: Record<string, number>;
  snapshot: Snapshot;
}

export function sample(before: Snapshot, after: Snapshot): Sample {
  const elapsed = after.now - before.now;
  const rate = (pick: (s: Snapshot) => number) => (pick(after) - pick(before)) / elapsed;
  const split: Record<string, number> = {};
  for (const part of Object.keys(after.seconds)) {
    split[part] = Math.max(
      0,
      rate((s) => s.seconds[part] ?? 0),
    );
  }
  split["idle"] = idle(split, after.stats.num_running === 0);
  const { stats } = after;
  return {
    wall: after.wall,
    now: after.now,
    generated: rate((s) => s.stats.generation_tokens),
    prompted: rate((s) => s.stats.prompt_tokens),
    steps: rate((s) => s.stats.num_steps),
    running: stats.num_running,
    waiting: stats.num_waiting,
    kvUsage: stats.kv_blocks_total ? stats.kv_blocks_used / stats.kv_blocks_total : 0,
    preemptions: rate((s) => s.stats.num_preemptions),
    split,
    snapshot: after,
  };
}

/**
 * Seconds per second that the core waited for requests. It tells of its time with each step only: while
 * nothing runs, whatever is not told of is idleness, and what a first step tells was before.
 */
function idle(split: Record<string, number>, atRest: boolean): number {
  const busy = CORE_PARTS.reduce((sum, p) => sum + (p === "idle" ? 0 : (split[p] ?? 0)), 0);
  const most = Math.max(0, 1 - busy);
  return atRest ? most : Math.min(most, split["idle"] ?? 0);
}

/** Whether `after` is not from the same run of the server as `before`. */
export function restarted(before: Snapshot, after: Snapshot): boolean {
  return (
    after.now <= before.now ||
    after.stats.num_steps < before.stats.num_steps ||
    after.stats.prompt_tokens < before.stats.prompt_tokens
  );
}

/** What the last `seconds` added, as one sample; null before there are two snapshots. */
export function recent(history: readonly Sample[], seconds: number): Sample | null {
  const last = history.at(-1);
  if (!last) return null;
  const first = history.find((s) => s.now >= last.now - seconds - 0.5) ?? last;
  return first === last ? last : sample(first.snapshot, last.snapshot);
}

/** Shares of `parts` in their own sum. */
export function shares(split: Record<string, number>, parts: readonly string[]): number[] {
  const total = parts.reduce((sum, part) => sum + (split[part] ?? 0), 0);
  return parts.map((part) => (total > 0 ? (split[part] ?? 0) / total : 0));
}
