// One request from its arrival to its end, over whatever view it was opened from.
import { useCallback, useEffect, useState } from "preact/hooks";
import { callJson, told } from "../api";
import { count, seconds, shortId } from "../format";
import { Canvas } from "../parts/canvas";
import { drawGrid, drawLane, spanPaints } from "../parts/lanes";
import { Dialog, Empty, ErrorNote } from "../parts/panel";
import type { RequestTimeline } from "../types";

const METRICS: Record<string, string> = {
  ttft: "First token",
  queue: "Queue",
  prefill: "Prefill",
  decode: "Decode",
  e2e: "Total",
};

interface Props {
  id: string;
  /** The server's time; while the request lives, each new one asks again. */
  now: number;
  onClose: () => void;
  onRequest: (id: string) => void;
}

export function RequestDialog({ id, now, onClose, onRequest }: Props) {
  const [timeline, setTimeline] = useState<RequestTimeline | null>(null);
  const [error, setError] = useState("");
  const over = timeline?.state === "finished" || error !== "";

  useEffect(() => {
    if (over) return;
    let current = true;
    callJson<RequestTimeline>("GET", `/dashboard/requests/${encodeURIComponent(id)}`).then(
      (answer) => current && setTimeline(answer),
      (reason: unknown) => current && setError(told(reason)),
    );
    return () => {
      current = false;
    };
  }, [id, over ? 0 : now]);

  return (
    <Dialog title="Request" class="drill" onClose={onClose}>
      <p>
        <code class="id">{timeline?.id ?? id}</code>
      </p>
      {error && <ErrorNote>{error}</ErrorNote>}
      {timeline ? (
        <Details timeline={timeline} now={now} onRequest={onRequest} />
      ) : (
        !error && <Empty>Loading …</Empty>
      )}
    </Dialog>
  );
}

interface DetailsProps {
  timeline: RequestTimeline;
  now: number;
  onRequest: (id: string) => void;
}

function Details({ timeline, now, onRequest }: DetailsProps) {
  const { arrival, metrics, events, related = [] } = timeline;
  const siblings = related.filter((id) => id !== timeline.id);
  return (
    <>
      <dl class="tiles small">
        <Fact name="State" value={timeline.finish_reason ?? timeline.state} />
        <Fact name="Prompt" value={`${count(timeline.prompt_tokens)} tok`} />
        <Fact name="Cached" value={`${count(timeline.cached_tokens)} tok`} />
        <Fact name="Generated" value={`${count(timeline.output_tokens)} tok`} />
        {Object.entries(METRICS).map(([name, title]) => (
          <Fact key={name} name={title} value={seconds(metrics[name])} />
        ))}
      </dl>
      <Life timeline={timeline} now={now} />
      {siblings.length > 0 && (
        <p>
          Beside it, of the same request:{" "}
          {siblings.map((id) => (
            <button key={id} type="button" class="quiet" onClick={() => onRequest(id)}>
              {shortId(id)}
            </button>
          ))}
        </p>
      )}
      <div class="scroll events" tabIndex={0} role="region" aria-label="Events">
        <table>
          <thead>
            <tr>
              <th scope="col">after</th>
              <th scope="col" class="text">
                event
              </th>
              <th scope="col">tokens</th>
              <th scope="col" class="text">
                what
              </th>
            </tr>
          </thead>
          <tbody>
            {events.map((event, i) => (
              <tr key={i}>
                <td>{seconds(event.t - arrival)}</td>
                <td class="text">{event.kind}</td>
                <td>{event.tokens ? count(event.tokens) : ""}</td>
                <td class="text">{event.text}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Life({ timeline, now }: { timeline: RequestTimeline; now: number }) {
  const { arrival, spans } = timeline;
  const end = Math.max(arrival + 1e-4, ...spans.map(([, , last]) => last ?? now));
  const height = useCallback(() => 62, []);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, width: number, tall: number) => {
      drawGrid(context, end - arrival, width, tall, seconds);
      const scale = (t: number) => ((t - arrival) / (end - arrival)) * width;
      drawLane(context, timeline, now, scale, 22, 36, spanPaints());
    },
    [timeline, end],
  );
  return <Canvas height={height} draw={draw} />;
}
