// Talk to the model, and see how sure it was of every token.
import { useEffect, useRef } from "preact/hooks";
import type { Chat, Turn } from "../chat";
import { ErrorNote, Panel } from "../parts/panel";
import { SettingsForm } from "../parts/settings";
import { Tokens } from "../parts/tokens";

interface Props {
  chat: Chat;
  onRequest: (id: string) => void;
}

export function Playground({ chat, onRequest }: Props) {
  const { turns, error } = chat;
  const end = useRef<HTMLDivElement>(null);
  const shown = turns.at(-1)?.content.length ?? 0;
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns.length, shown]);

  return (
    <div class="play">
      <Panel
        title="Playground"
        aside={
          <button type="button" disabled={!turns.length} onClick={() => chat.clear()}>
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
          {turns.map((turn, i) => (
            <Said key={i} turn={turn} onRequest={onRequest} />
          ))}
          <div ref={end} />
        </div>
        {error && <ErrorNote>{error}</ErrorNote>}
        <Ask chat={chat} />
      </Panel>
      <SettingsForm settings={chat.settings} onChange={(part) => chat.sample(part)} />
    </div>
  );
}

function Said({ turn, onRequest }: { turn: Turn; onRequest: (id: string) => void }) {
  const { role, content, tokens, reasoning, requestId, note } = turn;
  return (
    <article class={`turn ${role}`} aria-label={role}>
      {reasoning && (
        <details class="reasoning" open={!content}>
          <summary>Reasoning</summary>
          <p class="tokens">{reasoning}</p>
        </details>
      )}
      {tokens.length ? <Tokens tokens={tokens} /> : <p class="tokens">{content}</p>}
      {note && (
        <p class="note dim">
          {note}{" "}
          {requestId && (
            <button type="button" class="quiet" onClick={() => onRequest(requestId)}>
              its timeline
            </button>
          )}
        </p>
      )}
    </article>
  );
}

function Ask({ chat }: { chat: Chat }) {
  return (
    <form
      class="ask"
      onSubmit={(event) => {
        event.preventDefault();
        void chat.send();
      }}
    >
      <textarea
        rows={2}
        value={chat.draft}
        aria-label="Message"
        placeholder="Message; Enter sends, Shift+Enter is a new line"
        onInput={(e) => chat.write(e.currentTarget.value)}
        onKeyDown={(e) => {
          if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
          e.preventDefault();
          void chat.send();
        }}
      />
      {chat.running ? (
        <button type="button" class="primary" onClick={() => chat.stop()}>
          Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={!chat.draft.trim()}>
          Send
        </button>
      )}
    </form>
  );
}
