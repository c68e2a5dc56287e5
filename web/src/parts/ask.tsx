// Asking the server to explain itself: one answer, which two views show.
import { useState } from "preact/hooks";
import { callJson, told } from "../api";
import type { Explanation } from "../types";

export interface ExplainProps {
  explanation: Explanation | null;
  onExplained: (explanation: Explanation) => void;
}

interface Asking {
  busy: boolean;
  error: string;
  again: boolean;
  ask: () => Promise<void>;
}

export function useExplain({ explanation, onExplained }: ExplainProps): Asking {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const ask = async () => {
    setBusy(true);
    setError("");
    try {
      onExplained(await callJson<Explanation>("GET", "/explain"));
    } catch (reason) {
      setError(told(reason));
    }
    setBusy(false);
  };
  return { busy, error, again: explanation !== null, ask };
}

export function AskButton({ asking, verb }: { asking: Asking; verb: string }) {
  const { busy, again, ask } = asking;
  return (
    <button type="button" class="primary" disabled={busy} onClick={ask}>
      {busy ? "Watching for some seconds …" : again ? `${verb} again` : verb}
    </button>
  );
}
