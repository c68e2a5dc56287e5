// Where the time goes, how much comes out, how long it takes; and the counters themselves.
import { count, percent, plural, seconds, short } from "../format";
import { CORE_PARTS, recent, shares, type Sample } from "../history";
import { HATCHED_PARTS, PART_COLORS } from "../palette";
import { Chart, type Series } from "../parts/chart";
import { Counters } from "../parts/counters";
import { Devices } from "../parts/devices";
import { Panel } from "../parts/panel";
import { Stages } from "../parts/stages";
import { PART_MEANINGS, Split } from "../parts/split";
import type { LatencyName, Snapshot } from "../types";

const WINDOW = 10;

interface Props {
  snapshot: Snapshot;
  history: readonly Sample[];
}

export function Overview({ snapshot, history }: Props) {
  const times = history.map((s) => s.wall);
  return (
    <div class="grid">
      <Tiles snapshot={snapshot} history={history} />
      <Panel title="Where the time goes" class="wide" aside={<Window history={history} />}>
        <Split split={recent(history, WINDOW)?.split} />
        <Chart
          label="The core's time"
          times={times}
          series={bands(history)}
          format={percent}
          stacked
          max={1}
        />
      </Panel>
      <Panel title="Throughput">
        <Chart
          label="Tokens/s"
          times={times}
          format={short}
          series={[
            line("generated", "--green", history, (s) => s.generated),
            line("prompts", "--blue", history, (s) => s.prompted, [6, 3]),
          ]}
        />
      </Panel>
      <Panel title="Requests">
        <Chart
          label="Sequences"
          times={times}
          format={short}
          series={[
            line("running", "--green", history, (s) => s.running),
            line("waiting", "--red", history, (s) => s.waiting, [6, 3]),
          ]}
        />
      </Panel>
      <Latency snapshot={snapshot} history={history} />
      <Panel title="KV cache">
        <Chart
          label="Blocks in use"
          times={times}
          format={percent}
          max={1}
          series={[line("in use", "--pink", history, (s) => s.kvUsage)]}
        />
        <KvFacts snapshot={snapshot} />
      </Panel>
      <Stages history={history} />
      <Devices readings={snapshot.devices} history={history} />
      <Counters snapshot={snapshot} />
    </div>
  );
}

function line(
  label: string,
  color: string,
  history: readonly Sample[],
  pick: (s: Sample) => number | null,
  dash?: number[],
): Series {
  return { label, color, values: history.map(pick), ...(dash && { dash }) };
}

function bands(history: readonly Sample[]): Series[] {
  const rows = history.map((s) => shares(s.split, CORE_PARTS));
  return CORE_PARTS.map((part, i) => ({
    label: part,
    color: PART_COLORS[part] ?? "--idle",
    hatched: HATCHED_PARTS.has(part),
    title: PART_MEANINGS[part] ?? "",
    values: rows.map((row) => row[i] ?? 0),
  }));
}

function Window({ history }: { history: readonly Sample[] }) {
  const seen = Math.min(WINDOW, Math.max(1, history.length));
  return <span class="dim">last {plural(seen, "second")}</span>;
}

function Tiles({ snapshot, history }: Props) {
  const { stats, latency } = snapshot;
  const now = recent(history, WINDOW);
  const used = stats.kv_blocks_total ? stats.kv_blocks_used / stats.kv_blocks_total : 0;
  const hits = stats.prefix_cache_queries
    ? stats.prefix_cache_hits / stats.prefix_cache_queries
    : null;
  return (
    <dl class="tiles">
      <Tile name="Generated" value={now ? short(now.generated) : "–"} unit="tok/s" />
      <Tile name="Prompts" value={now ? short(now.prompted) : "–"} unit="tok/s" />
      <Tile
        name="Running"
        value={count(stats.num_running)}
        unit={`of ${count(snapshot.max_num_seqs)}`}
      />
      <Tile name="Waiting" value={count(stats.num_waiting)} unit="" />
      <Tile name="First token" value={seconds(latency.ttft.p50)} unit="p50, last minute" />
      <Tile name="Between tokens" value={seconds(latency.itl.p50)} unit="p50, last minute" />
      <Tile
        name="KV cache"
        value={percent(used)}
        unit={`of ${plural(stats.kv_blocks_total, "block")}`}
      />
      <Tile name="Prefix hits" value={percent(hits)} unit="of prompt tokens" />
      {stats.num_drafts > 0 && (
        <Tile
          name="Drafts accepted"
          value={percent(stats.num_accepted_tokens / stats.num_draft_tokens)}
          unit={`${(1 + stats.num_accepted_tokens / stats.num_drafts).toFixed(2)} tokens per pass`}
        />
      )}
    </dl>
  );
}

function Tile({ name, value, unit }: { name: string; value: string; unit: string }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>
        {value} <small>{unit}</small>
      </dd>
    </div>
  );
}

const LATENCIES: [LatencyName, string][] = [
  ["ttft", "First token"],
  ["itl", "Between tokens"],
  ["e2e", "Whole answer"],
  ["queue", "Queue"],
];

function Latency({ snapshot, history }: Props) {
  const percentile = (name: LatencyName, p: "p50" | "p99") => (s: Sample) =>
    s.snapshot.latency[name][p];
  return (
    <Panel title="Latency" aside={<span class="dim">over the last minute</span>}>
      <Chart
        label="Seconds"
        times={history.map((s) => s.wall)}
        format={seconds}
        series={[
          line("first token p50", "--blue", history, percentile("ttft", "p50")),
          line("p99", "--blue", history, percentile("ttft", "p99"), [2, 3]),
          line("between tokens p50", "--orange", history, percentile("itl", "p50")),
          line("p99 ", "--orange", history, percentile("itl", "p99"), [2, 3]),
        ]}
      />
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Latency</th>
              <th scope="col">p50</th>
              <th scope="col">p90</th>
              <th scope="col">p99</th>
              <th scope="col">count</th>
            </tr>
          </thead>
          <tbody>
            {LATENCIES.map(([name, title]) => {
              const of = snapshot.latency[name];
              return (
                <tr key={name}>
                  <th scope="row">{title}</th>
                  <td>{seconds(of.p50)}</td>
                  <td>{seconds(of.p90)}</td>
                  <td>{seconds(of.p99)}</td>
                  <td>{count(of.count)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function KvFacts({ snapshot: { stats } }: { snapshot: Snapshot }) {
  const free = stats.kv_blocks_total - stats.kv_blocks_used;
  const facts: [string, string][] = [
    ["Blocks in use", count(stats.kv_blocks_used)],
    ["Free blocks", count(free)],
    ["of these, cached", count(stats.kv_blocks_cached)],
    ["Prompt tokens found cached", count(stats.prefix_cache_hits)],
    ["Preemptions", count(stats.num_preemptions)],
  ];
  return (
    <table>
      <tbody>
        {facts.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
