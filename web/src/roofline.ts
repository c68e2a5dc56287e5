// Operations against the machine's limits. All calls of one kind of module are one point.
import type { Limits, OpProfile, OpTime } from "./types";

export interface Point {
  name: string;
  module: string;
  dtype: string;
  calls: number;
  seconds: number;
  /** Of the time in all operations. */
  share: number;
  flopsSecond: number;
  bytesSecond: number;
  /** Operations a byte. */
  intensity: number;
  bound: "memory" | "compute" | "unknown";
  /** Of what its limit allows at this intensity; null where the limits are not known. */
  ofLimit: number | null;
}

export function points(profile: OpProfile, limits: Limits | null): Point[] {
  const groups = new Map<string, OpTime>();
  for (const op of profile.ops) {
    const module = op.module.replace(/\.\d+\./g, ".*.").replace(/^\d+\./, "");
    const key = `${op.name} ${module} ${op.dtype}`;
    const known = groups.get(key);
    if (!known) {
      groups.set(key, { ...op, module });
      continue;
    }
    known.calls += op.calls;
    known.seconds += op.seconds;
    known.nbytes += op.nbytes;
    known.flops += op.flops;
    known.rows += op.rows;
  }
  const total = [...groups.values()].reduce((sum, op) => sum + op.seconds, 0);
  return [...groups.values()]
    .filter((op) => op.seconds > 0)
    .map((op) => point(op, total, limits))
    .sort((a, b) => b.share - a.share);
}

/** FLOP/s of the roof for `dtype`: its own, or the highest where it has none. */
export function roof(limits: Limits, dtype: string): number {
  return limits.flops_s[dtype] ?? Math.max(0, ...Object.values(limits.flops_s));
}

function point(op: OpTime, total: number, limits: Limits | null): Point {
  const flopsSecond = op.flops / op.seconds;
  const bytesSecond = op.nbytes / op.seconds;
  const ofMemory = limits ? bytesSecond / limits.bandwidth_bytes_s : null;
  const peak = limits ? roof(limits, op.dtype) : 0;
  const ofCompute = peak ? flopsSecond / peak : null;
  const memory = ofMemory !== null && ofMemory >= (ofCompute ?? 0);
  return {
    name: op.name,
    module: op.module,
    dtype: op.dtype,
    calls: op.calls,
    seconds: op.seconds,
    share: op.seconds / total,
    flopsSecond,
    bytesSecond,
    intensity: op.nbytes ? op.flops / op.nbytes : 0,
    bound: limits ? (memory ? "memory" : "compute") : "unknown",
    ofLimit: limits ? Math.max(ofMemory ?? 0, ofCompute ?? 0) : null,
  };
}
