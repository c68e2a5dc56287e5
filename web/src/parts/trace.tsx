// Records what the engine does for a few seconds, as a trace that Perfetto opens.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, callJson, told } from "../api";
import { Dialog, ErrorNote } from "./panel";

const LENGTHS = [1, 3, 10];

export function TraceButton() {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" class="trace" onClick={() => setOpen(true)}>
        Trace
      </button>
      {open && <TraceDialog onClose={() => setOpen(false)} />}
    </>
  );
}

type State =
  | { is: "ready"; error?: string }
  | { is: "recording"; left: number }
  | { is: "saving" }
  | { is: "done"; files: string[] };

function TraceDialog({ onClose }: { onClose: () => void }) {
  const [state, setState] = useState<State>({ is: "ready" });
  const [length, setLength] = useState(3);
  const timer = useRef<ReturnType<typeof setInterval> | undefined>(undefined);
  useEffect(() => () => clearInterval(timer.current), []);

  async function start(): Promise<void> {
    try {
      await call("POST", "/start_profile");
    } catch (reason) {
      setState({ is: "ready", error: told(reason) });
      return;
    }
    let left = length;
    setState({ is: "recording", left });
    timer.current = setInterval(() => {
      left -= 1;
      if (left > 0) setState({ is: "recording", left });
      else void stop();
    }, 1000);
  }

  async function stop(): Promise<void> {
    clearInterval(timer.current);
    setState({ is: "saving" });
    try {
      const { files } = await callJson<{ files: string[] }>("POST", "/stop_profile");
      setState({ is: "done", files });
    } catch (reason) {
      setState({ is: "ready", error: told(reason) });
    }
  }

  function close(): void {
    if (state.is === "recording") void stop();
    onClose();
  }

  return (
    <Dialog title="Record a trace" onClose={close}>
      {state.is === "ready" && (
        <>
          {state.error && <ErrorNote>{state.error}</ErrorNote>}
          <p>
            Every operation, with its rows, bytes and time, while requests run. The file opens in
            Perfetto.
          </p>
          <div class="tools">
            <label>
              Record{" "}
              <select value={length} onChange={(e) => setLength(Number(e.currentTarget.value))}>
                {LENGTHS.map((s) => (
                  <option key={s} value={s}>{`${s} s`}</option>
                ))}
              </select>
            </label>
            <button type="button" class="primary" onClick={start}>
              Start
            </button>
          </div>
        </>
      )}
      {state.is === "recording" && (
        <div class="tools">
          <p role="status">{`Recording, ${state.left} s left …`}</p>
          <button type="button" onClick={stop}>
            Stop now
          </button>
        </div>
      )}
      {state.is === "saving" && <p role="status">Writing the trace …</p>}
      {state.is === "done" && (
        <div role="status">
          <p>
            {state.files.length
              ? "On the server, in its folder for traces (by default traces in QUIRE_CACHE_DIR):"
              : "No step ran in that time, so there is nothing to show."}
          </p>
          {state.files.map((name) => (
            <p key={name}>
              <code class="id">{name}</code>
            </p>
          ))}
        </div>
      )}
    </Dialog>
  );
}
