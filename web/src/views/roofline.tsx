// What each operation reaches of what the machine can do.
import { useState } from "preact/hooks";
import { percent, seconds, short } from "../format";
import { AskButton, useExplain, type ExplainProps } from "../parts/ask";
import { Empty, ErrorNote, Panel } from "../parts/panel";
import { RooflinePlot } from "../parts/roofline_plot";
import type { Explanation, OpLine } from "../types";

export function RooflineView(props: ExplainProps) {
  const { explanation } = props;
  const asking = useExplain(props);
  const [marked, mark] = useState<number | null>(null);
  const ops = explanation?.ops ?? [];
  return (
    <div class="grid" aria-busy={asking.busy}>
      <Panel title="Roofline" class="wide" aside={<AskButton asking={asking} verb="Measure" />}>
        {asking.error && <ErrorNote>{asking.error}</ErrorNote>}
        {explanation && ops.length > 0 ? (
          <>
            <p class="dim">{summary(explanation)}</p>
            {explanation.limits?.stale && (
              <p class="dim">
                The measured limit is stale: operations ran faster than it allows, unless caches
                hold what they read.
              </p>
            )}
            <RooflinePlot ops={ops} limits={explanation.limits} marked={marked} onMark={mark} />
          </>
        ) : (
          !asking.error && <Empty>{hint(explanation)}</Empty>
        )}
      </Panel>
      {ops.length > 0 && <Table ops={ops} marked={marked} onMark={mark} />}
    </div>
  );
}

function hint(explanation: Explanation | null): string {
  if (explanation) return "Nothing ran in that time. Send requests while it measures.";
  return "Times every operation of the next seconds. Requests must be running.";
}

function summary({ window_s, limits }: Explanation): string {
  const seen = `Operations of ${seconds(window_s)}`;
  if (!limits) return `${seen}.`;
  const memory = `memory gives ${short(limits.bandwidth_bytes_s / 1e9)} GB/s`;
  if (limits.source === "measured") return `${seen}; ${memory}, as measured.`;
  return (
    `${seen}; ${memory} at least: the fastest of them stands for the limit, ` +
    "until `quire explain --measure` on an idle machine has measured it."
  );
}

interface TableProps {
  ops: OpLine[];
  marked: number | null;
  onMark: (at: number | null) => void;
}

const NUMBERS: [string, (op: OpLine) => string][] = [
  ["GB/s", (op) => short(op.gb_s)],
  ["GFLOP/s", (op) => short(op.gflop_s)],
  ["FLOP/B", (op) => short(op.intensity)],
  ["bound by", (op) => op.bound],
  ["reached", (op) => percent(op.of_limit)],
];

function Table({ ops, marked, onMark }: TableProps) {
  return (
    <Panel title="Operations" class="wide">
      <div class="scroll" tabIndex={0} role="region" aria-label="Operations">
        <table>
          <thead>
            <tr>
              <th scope="col">#</th>
              <th scope="col" class="text">
                operation
              </th>
              <th scope="col">time</th>
              <th scope="col" class="text">
                module
              </th>
              {NUMBERS.map(([title]) => (
                <th key={title} scope="col">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {ops.map((op, i) => (
              <tr
                key={`${op.name} ${op.module}`}
                class={marked === i ? "marked" : ""}
                onMouseEnter={() => onMark(i)}
                onMouseLeave={() => onMark(null)}
              >
                <td>{i + 1}</td>
                <th scope="row" class="text">
                  {op.name}
                </th>
                <td>{percent(op.share)}</td>
                <td class="text">
                  <code>{op.module}</code> <span class="dim">{op.dtype}</span>
                </td>
                {NUMBERS.map(([title, format]) => (
                  <td key={title}>{format(op)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
