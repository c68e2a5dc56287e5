// Talk to the model, and see how sure it was of every token.
import { useEffect, useRef, useState } from "preact/hooks";
import { told } from "../api";
import { count, seconds, short } from "../format";
import { generate, type Message, type Settings, type Token } from "../generate";
import { ErrorNote, Panel } from "../parts/panel";
import { SettingsForm } from "../parts/settings";
import { Tokens } from "../parts/tokens";

interface Turn extends Message {
  tokens: Token[];
  requestId: string;
  note: string;
}

export interface Conversation {
  turns: Turn[];
  settings: Settings;
  draft: string;
}

export const NEW_CONVERSATION: Conversation = {
  turns: [],
  settings: { system: "", temperature: null, top_p: null, max_tokens: 256, seed: null },
  draft: "",
};

interface Props {
  conversation: Conversation;
  onChange: (change: (before: Conversation) => Conversation) => void;
  onRequest: (id: string) => void;
}

export function Playground({ conversation, onChange, onRequest }: Props) {
  const { turns, settings, draft } = conversation;
  const [running, setRunning] = useState<AbortController | null>(null);
  const [error, setError] = useState("");
  const end = useRef<HTMLDivElement>(null);
  const shown = turns.at(-1)?.content.length ?? 0;

  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns.length, shown]);
  useEffect(() => () => running?.abort(), [running]);

  const change = (part: Partial<Conversation>) => onChange((before) => ({ ...before, ...part }));

  async function send(): Promise<void> {
    const text = draft.trim();
    if (!text || running) return;
    const abort = new AbortController();
    setRunning(abort);
    setError("");
    const asked = [...turns, turn("user", text)];
    change({ turns: asked, draft: "" });
    try {
      await follow(asked, settings, abort.signal, (reply) => change({ turns: [...asked, reply] }));
    } catch (reason) {
      if (!abort.signal.aborted) {
        setError(told(reason));
        onChange((before) => ({ ...before, draft: before.draft || text }));
      }
    }
    setRunning(null);
  }

  return (
    <div class="play">
      <Panel
        title="Playground"
        aside={
          <button type="button" disabled={!turns.length} onClick={() => change({ turns: [] })}>
            New
          </button>
        }
      >
        <div class="talk">
          {turns.length === 0 && (
            <p class="empty">
              Ask the model something. The darker a token of the answer, the less sure the model was
              of it; point at one to see what else it might have been.
            </p>
          )}
          {turns.map((t, i) => (
            <article key={i} class={`turn ${t.role}`} aria-label={t.role}>
              {t.tokens.length ? <Tokens tokens={t.tokens} /> : <p class="tokens">{t.content}</p>}
              {t.note && (
                <p class="note dim">
                  {t.note}{" "}
                  {t.requestId && (
                    <button type="button" class="quiet" onClick={() => onRequest(t.requestId)}>
                      its timeline
                    </button>
                  )}
                </p>
              )}
            </article>
          ))}
          <div ref={end} />
        </div>
        {error && <ErrorNote>{error}</ErrorNote>}
        <form
          class="ask"
          onSubmit={(event) => {
            event.preventDefault();
            void send();
          }}
        >
          <textarea
            rows={2}
            value={draft}
            aria-label="Message"
            placeholder="Message; Enter sends, Shift+Enter is a new line"
            onInput={(e) => change({ draft: e.currentTarget.value })}
            onKeyDown={(e) => {
              if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
              e.preventDefault();
              void send();
            }}
          />
          {running ? (
            <button type="button" class="primary" onClick={() => running.abort()}>
              Stop
            </button>
          ) : (
            <button type="submit" class="primary" disabled={!draft.trim()}>
              Send
            </button>
          )}
        </form>
      </Panel>
      <SettingsForm settings={settings} onChange={(next) => change({ settings: next })} />
    </div>
  );
}

function turn(role: "user" | "assistant", content: string): Turn {
  return { role, content, tokens: [], requestId: "", note: "" };
}

/** Show the answer as it comes, and what there is to say of it at its end. */
async function follow(
  asked: Turn[],
  settings: Settings,
  signal: AbortSignal,
  show: (reply: Turn) => void,
): Promise<void> {
  const messages = asked.map(({ role, content }) => ({ role, content }));
  const start = performance.now();
  const { requestId, plain, pieces } = await generate(messages, settings, signal);
  const reply = { ...turn("assistant", ""), requestId };
  let first = 0;
  let finish: string | null = null;
  try {
    for await (const piece of pieces) {
      if (!first && piece.tokens.length) first = performance.now();
      reply.content += piece.text;
      reply.tokens = [...reply.tokens, ...piece.tokens];
      finish = piece.finish ?? finish;
      show({ ...reply });
    }
  } finally {
    const now = performance.now();
    const rate = ((reply.tokens.length - 1) * 1000) / (now - first);
    const facts = [
      `${count(reply.tokens.length)} tokens`,
      first ? `first after ${seconds((first - start) / 1000)}` : "",
      reply.tokens.length > 1 ? `${short(rate)} tok/s` : "",
      finish === "length" ? "cut off by max tokens" : finish === null ? "stopped" : "",
      plain ? "no chat template: plain completion" : "",
    ];
    show({ ...reply, note: `${facts.filter(Boolean).join(" · ")}.` });
  }
}
