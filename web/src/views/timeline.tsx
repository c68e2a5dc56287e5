// The scheduler's work: a lane a request, the newest on top.
import { useCallback, useState } from "preact/hooks";
import { plural, seconds, shortId } from "../format";
import { SPAN_COLORS } from "../palette";
import { Canvas } from "../parts/canvas";
import { Swatch } from "../parts/chart";
import { SPAN_MEANINGS, drawGrid, drawLane, spanPaints } from "../parts/lanes";
import { Empty, Panel } from "../parts/panel";
import { rove } from "../parts/roving";
import type { Lane, Snapshot, SpanKind } from "../types";

const ROW = 26;
const AXIS = 20;
const WINDOWS = [1, 3, 10, 30, 60];

interface Props {
  snapshot: Snapshot;
  onRequest: (id: string) => void;
}

export function Timeline({ snapshot, onRequest }: Props) {
  const [span, setSpan] = useState(10);
  const [frozen, setFrozen] = useState<Snapshot | null>(null);
  const shown = frozen ?? snapshot;
  const start = shown.now - span;
  const lanes = shown.lanes
    .filter((lane) => lastTime(lane, shown.now) >= start)
    .sort((a, b) => b.arrival - a.arrival);
  return (
    <Panel
      title="Scheduler timeline"
      class="wide"
      aside={
        <div class="tools">
          <label>
            Show{" "}
            <select value={span} onChange={(e) => setSpan(Number(e.currentTarget.value))}>
              {WINDOWS.map((w) => (
                <option key={w} value={w}>{`${w} s`}</option>
              ))}
            </select>
          </label>
          <button
            type="button"
            aria-pressed={frozen !== null}
            onClick={() => setFrozen(frozen ? null : snapshot)}
          >
            {frozen ? "Go on" : "Hold"}
          </button>
        </div>
      }
    >
      <Legend />
      {lanes.length ? (
        <Lanes lanes={lanes} now={shown.now} span={span} onRequest={onRequest} />
      ) : (
        <Empty>{`No request in the last ${span} seconds. Send one, from the playground perhaps.`}</Empty>
      )}
    </Panel>
  );
}

function Legend() {
  return (
    <ul class="legend">
      {(Object.keys(SPAN_MEANINGS) as SpanKind[]).map((kind) => (
        <li key={kind}>
          <Swatch
            color={kind === "queue" ? "--dim" : SPAN_COLORS[kind]}
            hatched={kind === "preempted" || kind === "load"}
            {...(kind === "queue" && { dash: [14] })}
          />
          <span>
            {kind} <span class="dim">{SPAN_MEANINGS[kind]}</span>
          </span>
        </li>
      ))}
    </ul>
  );
}

interface LanesProps {
  lanes: Lane[];
  now: number;
  span: number;
  onRequest: (id: string) => void;
}

function Lanes({ lanes, now, span, onRequest }: LanesProps) {
  const [focused, setFocused] = useState<string | null>(null);
  const stop = lanes.some((lane) => lane.id === focused) ? focused : lanes[0]?.id;
  const height = useCallback(() => AXIS + lanes.length * ROW, [lanes.length]);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, width: number, tall: number) => {
      drawGrid(context, span, width, tall, (s) => (s === span ? "now" : `−${seconds(span - s)}`));
      const paints = spanPaints();
      const scale = (t: number) => ((t - now + span) / span) * width;
      lanes.forEach((lane, i) => {
        drawLane(context, lane, now, scale, AXIS + i * ROW + 3, ROW - 6, paints);
      });
    },
    [lanes, now, span],
  );
  return (
    <div class="lanes">
      <Canvas class="lanes-canvas" height={height} draw={draw} />
      <ul onKeyDown={(e) => rove(e, "button")}>
        {lanes.map((lane) => (
          <li key={lane.id}>
            <button
              type="button"
              class="lane"
              tabIndex={lane.id === stop ? 0 : -1}
              onFocus={() => setFocused(lane.id)}
              onClick={() => onRequest(lane.id)}
              aria-label={describe(lane)}
              title={describe(lane)}
            >
              <span class="lane-name">{shortId(lane.id)}</span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function describe(lane: Lane): string {
  const cached = lane.cached_tokens ? ` (${lane.cached_tokens} cached)` : "";
  return `${lane.id}: ${lane.state}, ${plural(lane.prompt_tokens, "prompt token")}${cached}, ${lane.output_tokens} generated`;
}

function lastTime(lane: Lane, now: number): number {
  if (lane.state !== "finished") return now;
  return Math.max(lane.arrival, ...lane.spans.map(([, , end]) => end ?? now));
}
