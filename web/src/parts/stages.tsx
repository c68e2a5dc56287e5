// The pipeline's stages: which machine has them, how busy they are, and how long rows travel.
import { bytes, percent, seconds } from "../format";
import type { Sample } from "../history";
import type { Stage } from "../types";
import { Panel } from "./panel";

const WINDOW = 10;

export function Stages({ history }: { history: readonly Sample[] }) {
  const last = history.at(-1)?.snapshot;
  if (!last || last.stages.length === 0) return null;
  const from = last.now - WINDOW - 0.5;
  const first = history.find((s) => s.now >= from)?.snapshot ?? last;
  const elapsed = last.now - first.now;
  return (
    <Panel title="Pipeline stages" aside={<span class="dim">last {WINDOW} seconds</span>}>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Stage</th>
              <th scope="col">node</th>
              <th scope="col">layers</th>
              <th scope="col">busy</th>
              <th scope="col">rows to the next node</th>
              <th scope="col">per step</th>
            </tr>
          </thead>
          <tbody>
            {last.stages.map((stage, number) => {
              const since = between(first.stages[number], stage);
              const hops = since.hops;
              return (
                <tr key={number}>
                  <th scope="row">{number}</th>
                  <td>{stage.node}</td>
                  <td>{stage.layers}</td>
                  <td>{elapsed > 0 ? percent(since.busy / elapsed) : "–"}</td>
                  <td>{hops > 0 ? seconds(since.hop_seconds / hops) : "–"}</td>
                  <td>{hops > 0 ? bytes(since.hop_bytes / hops) : "–"}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

/** What a stage did since an earlier snapshot; all of it, if its core is a new one. */
function between(before: Stage | undefined, after: Stage): Stage {
  if (!before || before.busy > after.busy) return after;
  return {
    ...after,
    busy: after.busy - before.busy,
    hop_seconds: after.hop_seconds - before.hop_seconds,
    hop_bytes: after.hop_bytes - before.hop_bytes,
    hops: after.hops - before.hops,
  };
}
