// One moment's time split: the core's as shares of all of it, the API process's as shares of a CPU.
import { percent } from "../format";
import { CORE_PARTS, FRONT_PARTS, shares } from "../history";
import { HATCHED_PARTS, PART_COLORS } from "../palette";
import { Swatch } from "./chart";

export const PART_MEANINGS: Record<string, string> = {
  model: "the forward pass and the logits",
  sample: "logits to tokens",
  prepare: "a step's inputs",
  schedule: "choosing a step's tokens and blocks",
  update: "the scheduler applying a step's tokens",
  receive: "the core adding requests, including hashing",
  core_send: "the core encoding and sending its outputs",
  idle: "the core waiting for requests",
  http: "connections, parsing, validation, answers: the rest of the API's event loop",
  tokenize: "prompts and chat templates to tokens",
  detokenize: "tokens to text",
  send: "texts to events, and events to sockets",
};

export function Split({ split }: { split: Record<string, number> | undefined }) {
  return (
    <div class="splits">
      <SplitBar name="Core, wall time" split={split} parts={CORE_PARTS} />
      <SplitBar name="API process, CPU time" split={split} parts={FRONT_PARTS} ofSecond />
    </div>
  );
}

interface SplitProps {
  name: string;
  split: Record<string, number> | undefined;
  parts: readonly string[];
  /** Widths are shares of one CPU, not of the parts' sum. */
  ofSecond?: boolean;
}

function SplitBar({ name, split = {}, parts, ofSecond = false }: SplitProps) {
  const widths = ofSecond ? parts.map((p) => split[p] ?? 0) : shares(split, parts);
  const total = widths.reduce((sum, width) => sum + width, 0);
  const label = parts.map((part, i) => `${part} ${percent(widths[i])}`).join(", ");
  return (
    <div class="split">
      <span class="name">
        {name} {ofSecond && <b>{percent(total)}</b>}
      </span>
      <div class="bar" role="img" aria-label={`${name}: ${label}`}>
        {parts.map((part, i) => {
          const width = widths[i] ?? 0;
          if (width < 0.001) return null;
          return (
            <span
              key={part}
              class={`part ${HATCHED_PARTS.has(part) ? "hatched" : ""}`}
              style={{
                width: `${Math.min(1, width) * 100}%`,
                background: `var(${PART_COLORS[part]})`,
              }}
              title={`${part} ${percent(width)}: ${PART_MEANINGS[part]}`}
            >
              {width > 0.09 && <span>{`${part} ${percent(width)}`}</span>}
            </span>
          );
        })}
      </div>
      {ofSecond && (
        <ul class="legend">
          {parts.map((part, i) => (
            <li key={part} title={PART_MEANINGS[part]}>
              <Swatch color={PART_COLORS[part] ?? "--idle"} hatched={HATCHED_PARTS.has(part)} />
              {part} <b>{percent(widths[i])}</b>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
