// What each operation reaches of what the machine can do.
import { useState } from "preact/hooks";
import { callJson, told } from "../api";
import { count, percent, plural, seconds, short } from "../format";
import { Empty, ErrorNote, Panel } from "../parts/panel";
import { RooflinePlot } from "../parts/roofline_plot";
import { points, type Point } from "../roofline";
import type { Explanation, Limits, OpProfile } from "../types";

const STEPS = 100;
const TIMEOUT_S = 15;

export interface Measured {
  profile: OpProfile;
  limits: Limits | null;
}

interface Props {
  measured: Measured | null;
  onMeasured: (measured: Measured) => void;
}

export function RooflineView({ measured, onMeasured }: Props) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [marked, mark] = useState<number | null>(null);
  const rows = measured ? points(measured.profile, measured.limits) : [];

  async function measure(): Promise<void> {
    setBusy(true);
    setError("");
    try {
      const body = { steps: STEPS, timeout_s: TIMEOUT_S };
      const profile = await callJson<OpProfile>("POST", "/profile_ops", body);
      const { limits } = await callJson<Explanation>("GET", "/explain");
      onMeasured({ profile, limits });
    } catch (reason) {
      setError(told(reason));
    }
    setBusy(false);
  }

  return (
    <div class="grid" aria-busy={busy}>
      <Panel
        title="Roofline"
        class="wide"
        aside={
          <button type="button" class="primary" disabled={busy} onClick={measure}>
            {busy ? "Measuring …" : measured ? "Measure again" : "Measure"}
          </button>
        }
      >
        {error && <ErrorNote>{error}</ErrorNote>}
        {rows.length > 0 && measured ? (
          <>
            <p class="dim">{summary(measured)}</p>
            <RooflinePlot points={rows} limits={measured.limits} marked={marked} onMark={mark} />
          </>
        ) : (
          !error && <Empty>{hint(busy, measured)}</Empty>
        )}
      </Panel>
      {rows.length > 0 && <Table rows={rows} marked={marked} onMark={mark} />}
    </div>
  );
}

function hint(busy: boolean, measured: Measured | null): string {
  if (busy) return `Waiting for up to ${STEPS} steps, ${TIMEOUT_S} seconds at most …`;
  if (measured) return `Nothing ran in ${TIMEOUT_S} seconds. Send requests while it measures.`;
  return `Times every operation of the next ${STEPS} steps. It needs requests under way.`;
}

function summary({ profile, limits }: Measured): string {
  const ops = profile.ops.reduce((sum, op) => sum + op.seconds, 0);
  const parts = [
    `${plural(profile.steps, "step")}, ${count(profile.tokens)} tokens`,
    `${seconds(profile.model_seconds / profile.steps)} in the model a step`,
    `${percent(ops / profile.model_seconds)} of it in the operations below`,
  ];
  if (limits) parts.push(`memory gives ${short(limits.bandwidth_bytes_s / 1e9)} GB/s`);
  return `${parts.join("; ")}.`;
}

interface TableProps {
  rows: Point[];
  marked: number | null;
  onMark: (at: number | null) => void;
}

function Table({ rows, marked, onMark }: TableProps) {
  return (
    <Panel title="Operations" class="wide">
      <div class="scroll" tabIndex={0} role="region" aria-label="Operations">
        <table class="ops">
          <thead>
            <tr>
              <th scope="col">#</th>
              <th scope="col" class="text">
                operation
              </th>
              <th scope="col" class="text">
                module
              </th>
              {["time", "a call", "GB/s", "GFLOP/s", "FLOP/B", "limit", "reached"].map((title) => (
                <th key={title} scope="col">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((p, i) => (
              <tr
                key={`${p.name} ${p.module} ${p.dtype}`}
                class={marked === i ? "marked" : ""}
                onMouseEnter={() => onMark(i)}
                onMouseLeave={() => onMark(null)}
              >
                <td>{i + 1}</td>
                <th scope="row" class="text">
                  {p.name}
                </th>
                <td class="text">
                  <code>{p.module}</code> <span class="dim">{p.dtype}</span>
                </td>
                <td>{percent(p.share)}</td>
                <td>{seconds(p.seconds / p.calls)}</td>
                <td>{short(p.bytesSecond / 1e9)}</td>
                <td>{short(p.flopsSecond / 1e9)}</td>
                <td>{short(p.intensity)}</td>
                <td>{p.bound}</td>
                <td>{percent(p.ofLimit)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
