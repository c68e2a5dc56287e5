// What the server sends. Times are seconds of the server's monotonic clock unless said otherwise.

export interface Stats {
  num_running: number;
  num_waiting: number;
  kv_blocks_used: number;
  kv_blocks_total: number;
  kv_blocks_cached: number;
  prefix_cache_queries: number;
  prefix_cache_hits: number;
  num_preemptions: number;
  num_steps: number;
  step_tokens: number;
  prompt_tokens: number;
  generation_tokens: number;
  rejected: number;
  finished: Record<string, number>;
  /** Passes of a sequence with drafts; 0 without speculative decoding. */
  num_drafts: number;
  num_draft_tokens: number;
  num_accepted_tokens: number;
}

export interface Percentiles {
  p50: number | null;
  p90: number | null;
  p99: number | null;
  count: number;
}

export type BlockKind = "free" | "cached" | "owned" | "shared";

export interface KvMap {
  num_blocks: number;
  runs: [kind: BlockKind, owner: number, count: number][];
  owners: string[];
}

export type SpanKind = "images" | "queue" | "encode" | "prefill" | "decode" | "preempted" | "load";
export type Span = [kind: SpanKind, start: number, end: number | null, tokens: number];

export interface Lane {
  id: string;
  arrival: number;
  state: "queued" | "running" | "finished";
  prompt_tokens: number;
  output_tokens: number;
  cached_tokens: number;
  spans: Span[];
}

export interface PrefixNode {
  id: string | number;
  parent: string | number | null;
  tokens: number;
  blocks: number;
  users: number;
}

export interface DeviceReading {
  name: string;
  kind: "cpu" | "gpu";
  power_w: number | null;
  energy_j: number | null;
  temperature_c: number | null;
  frequency_mhz: number | null;
  utilization: number | null;
  memory_used: number | null;
  memory_total: number | null;
}

/** A pipeline stage; counters are totals since the core's start. */
export interface Stage {
  node: number;
  layers: number;
  busy: number;
  hop_seconds: number;
  hop_bytes: number;
  hops: number;
}

export type LatencyName = "ttft" | "itl" | "e2e" | "queue";

export interface Snapshot {
  now: number;
  wall: number;
  model: string;
  version: string;
  max_model_len: number;
  max_num_seqs: number;
  stats: Stats;
  seconds: Record<string, number>;
  latency: Record<LatencyName, Percentiles>;
  kv_map: KvMap;
  lanes: Lane[];
  prefix_tree: { nodes: PrefixNode[] };
  devices: DeviceReading[];
  stages: Stage[];
}

export interface RequestTimeline extends Lane {
  events: { t: number; kind: string; tokens: number; text: string }[];
  metrics: Record<string, number | null>;
  finish_reason?: string | null;
  /** The sequences of the same HTTP request, itself among them. */
  related?: string[];
}

export interface Finding {
  cause: string;
  text: string;
  share: number;
  /** Estimated probability that the cause is real. */
  confidence: number;
}

export interface Change {
  flag: string;
  why: string;
  metric: string;
  estimated_gain: number;
  /** Half the range of the estimate, relative to it. */
  uncertainty: number;
  /** The range is so wide that the gain is its lower end. */
  at_least: boolean;
  /** The gain is from a replay of recorded requests. */
  simulated: boolean;
}

/** One operation in one place of every layer, all calls together. */
export interface OpLine {
  name: string;
  module: string;
  dtype: string;
  /** Of the time in all operations. */
  share: number;
  gb_s: number;
  gflop_s: number;
  /** Operations per byte. */
  intensity: number;
  bound: "memory" | "compute" | "overhead";
  of_limit: number | null;
}

export interface Limits {
  bandwidth_bytes_s: number;
  flops_s: Record<string, number>;
  /** "seen": no more than the fastest operation of the window. */
  source: "measured" | "seen";
  /** Operations were faster than the measured limits allow. */
  stale: boolean;
}

export interface Explanation {
  window_s: number;
  verdict: Finding;
  causes: Finding[];
  changes: Change[];
  ops: OpLine[];
  limits: Limits | null;
  notes: string[];
}
