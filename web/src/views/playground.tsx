// Talk to the model, and see how sure it was of every token.
import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Chat, Turn } from "../chat";
import { plural } from "../format";
import { AttachButton, Images, imagesOf } from "../parts/attach";
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

  const [over, setOver] = useState(false);
  return (
    <div
      class={`play${over ? " over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault(); // else the browser shows the file instead of the page
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void chat.attach(imagesOf(event.dataTransfer));
      }}
    >
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
              Ask the model something. The stronger the shade of a token, the less likely it was.
              Point at a token to see the alternatives. If the model reads images, drop, paste or
              choose some.
            </p>
          )}
          {turns.map((turn, i) => (
            <Fragment key={i}>
              {i > 0 && i === chat.forgotten && <Forgotten count={i} />}
              <Said turn={turn} forgotten={i < chat.forgotten} onRequest={onRequest} />
            </Fragment>
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

/** Said between the turns that the model no longer sees and those that it sees. */
function Forgotten({ count }: { count: number }) {
  return (
    <p class="forgotten note" role="status">
      The context is full: the {plural(count, "message")} above {count === 1 ? "was" : "were"} left
      out.
    </p>
  );
}

interface SaidProps {
  turn: Turn;
  forgotten: boolean;
  onRequest: (id: string) => void;
}

function Said({ turn, forgotten, onRequest }: SaidProps) {
  const { role, content, images, tokens, reasoning, requestId, note } = turn;
  return (
    <article class={`turn ${role}${forgotten ? " dim" : ""}`} aria-label={role}>
      <Images images={images} />
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
  const attach = (files: File[]) => void chat.attach(files);
  return (
    <form
      class="ask"
      onSubmit={(event) => {
        event.preventDefault();
        void chat.send();
      }}
    >
      <Images images={chat.images} onRemove={(i) => chat.detach(i)} />
      <textarea
        rows={2}
        value={chat.draft}
        aria-label="Message"
        placeholder="Message; Enter sends, Shift+Enter is a new line"
        onInput={(e) => chat.write(e.currentTarget.value)}
        onPaste={(e) => {
          const files = imagesOf(e.clipboardData);
          if (!files.length) return; // text
          e.preventDefault();
          attach(files);
        }}
        onKeyDown={(e) => {
          if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
          e.preventDefault();
          void chat.send();
        }}
      />
      <AttachButton onFiles={attach} />
      {chat.running ? (
        <button type="button" class="primary" onClick={() => chat.stop()}>
          Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={!chat.ready}>
          Send
        </button>
      )}
    </form>
  );
}
