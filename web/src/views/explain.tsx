// The server's verdict on its own speed, and what to change.
import { useState } from "preact/hooks";
import { percent, seconds } from "../format";
import { AskButton, useExplain, type ExplainProps } from "../parts/ask";
import { Empty, ErrorNote, Panel } from "../parts/panel";
import type { Change, Explanation } from "../types";

export function ExplainView(props: ExplainProps) {
  const { explanation } = props;
  const asking = useExplain(props);
  return (
    <div class="grid" aria-busy={asking.busy}>
      <Panel
        title="Why is it slow?"
        class="wide"
        aside={<AskButton asking={asking} verb="Explain" />}
      >
        {asking.error && <ErrorNote>{asking.error}</ErrorNote>}
        {explanation ? (
          <Verdict explanation={explanation} />
        ) : (
          !asking.error && (
            <Empty>
              Watches the work of some seconds and names what limits it. Best asked under the load
              that you care about.
            </Empty>
          )
        )}
      </Panel>
      {explanation && <Changes changes={explanation.changes} />}
      {explanation && <Causes explanation={explanation} />}
    </div>
  );
}

function Verdict({ explanation }: { explanation: Explanation }) {
  const { verdict, window_s, notes } = explanation;
  return (
    <div class="verdict" role="status">
      <p class="cause">
        <strong>{words(verdict.cause)}</strong>
        {verdict.cause !== "none" && (
          <span class="dim">
            {`${percent(verdict.share)} of the time, confidence ${percent(verdict.confidence)}`}
          </span>
        )}
      </p>
      <p>{verdict.text}</p>
      <p class="dim">{`Seen in ${seconds(window_s)} of work.`}</p>
      {notes.map((note) => (
        <p key={note} class="dim">
          {note}
        </p>
      ))}
    </div>
  );
}

function Changes({ changes }: { changes: Change[] }) {
  return (
    <Panel title="What to change">
      {changes.length === 0 && <Empty>Nothing: no change is expected to help.</Empty>}
      <ol class="changes">
        {changes.map((change) => (
          <li key={change.flag}>
            <p>
              <code>{change.flag}</code>
              <Copy text={change.flag} />
              {change.estimated_gain > 0 && <b class="gain">{gain(change)}</b>}
            </p>
            <p class="dim">{change.why}</p>
          </li>
        ))}
      </ol>
    </Panel>
  );
}

function Copy({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  if (!navigator.clipboard) return null; // only on https and this machine
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" class="quiet" onClick={copy} aria-label={`Copy ${text}`}>
      {copied ? "copied" : "copy"}
    </button>
  );
}

function Causes({ explanation }: { explanation: Explanation }) {
  const others = explanation.causes.filter((c) => c.cause !== explanation.verdict.cause);
  return (
    <Panel title="Other findings">
      {others.length === 0 && <Empty>Nothing else costs much time.</Empty>}
      <ul class="causes">
        {others.map((finding) => (
          <li key={finding.cause}>
            <details>
              <summary>
                <strong>{words(finding.cause)}</strong> <span>{percent(finding.share)}</span>
                <meter
                  value={finding.share}
                  max={1}
                  aria-label={`${words(finding.cause)}, share of the time`}
                />
              </summary>
              <p>{finding.text}</p>
              <p class="dim">{`Confidence ${percent(finding.confidence)}`}</p>
            </details>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

/** "+45 % ± 14 output tokens/s, estimated", or "at least +45 % output tokens/s, estimated". */
function gain({ estimated_gain, uncertainty, at_least, metric, simulated }: Change): string {
  const least = `+${percent(estimated_gain)}`;
  const spread = Math.round(100 * estimated_gain * uncertainty);
  const range = at_least ? `at least ${least}` : `${least} ± ${spread}`;
  return `${range} ${metric}, ${simulated ? "simulated" : "estimated"}`;
}

/** "memory_bandwidth" → "memory bandwidth". */
const words = (name: string): string =>
  name === "none" ? "nothing stands out" : name.replaceAll("_", " ");
