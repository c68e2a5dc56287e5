import { useState } from "preact/hooks";
import { setApiKey } from "../api";
import { Dialog, ErrorNote } from "./panel";

/** Asks for the API key, which is forgotten when the page is closed. */
export function KeyDialog({ wrong, onKey }: { wrong: boolean; onKey: () => void }) {
  const [key, setKey] = useState("");
  return (
    <Dialog title="API key">
      <form
        class="key"
        onSubmit={(event) => {
          event.preventDefault();
          setApiKey(key.trim());
          onKey();
        }}
      >
        {wrong && <ErrorNote>The server does not know this key.</ErrorNote>}
        <label>
          This server was started with --api-key. The key stays in this page's memory only.
          <input
            type="password"
            autocomplete="off"
            required
            value={key}
            onInput={(e) => setKey(e.currentTarget.value)}
          />
        </label>
        <button type="submit" class="primary">
          Open
        </button>
      </form>
    </Dialog>
  );
}
