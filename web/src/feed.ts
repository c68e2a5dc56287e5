// The stream of snapshots: one connection, kept up, and the history that charts are drawn of.
import { HttpError, call, told } from "./api";
import { HISTORY_SECONDS, restarted, sample, type Sample } from "./history";
import { serverEvents } from "./sse";
import type { Snapshot } from "./types";

const SILENCE_MS = 10_000; // ten missed snapshots: the connection is dead, whatever it says
const LONGEST_WAIT_MS = 15_000;

export type Link =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "key"; wrong: boolean }
  | { state: "lost"; why: string; retryAt: number };

export class Feed {
  link: Link = { state: "connecting" };
  snapshot: Snapshot | null = null;
  history: Sample[] = [];

  private readonly listeners = new Set<() => void>();
  private failures = 0;
  private asked = false;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private abort: AbortController | undefined;

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Connect now, in place of whatever connection there is. */
  connect(): void {
    clearTimeout(this.retry);
    this.abort?.abort();
    this.abort = new AbortController();
    void this.run(this.abort);
  }

  private async run(abort: AbortController): Promise<void> {
    if (this.link.state !== "lost") this.become({ state: "connecting" });
    try {
      await this.read(abort);
      this.lose("The server closed the connection.");
    } catch (error) {
      if (this.abort !== abort) return; // another one has taken over
      if (error instanceof HttpError && error.status === 401) {
        this.become({ state: "key", wrong: this.asked });
        this.asked = true;
      } else if (abort.signal.aborted) {
        this.lose("The server sends nothing any more.");
      } else {
        this.lose(told(error));
      }
    }
  }

  private async read(abort: AbortController): Promise<void> {
    let silence: ReturnType<typeof setTimeout> | undefined;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    heard();
    try {
      const response = await call("GET", "/dashboard/stream", undefined, abort.signal);
      for await (const { event, data } of serverEvents(response)) {
        heard();
        if (event === "snapshot") this.take(JSON.parse(data) as Snapshot);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  private take(snapshot: Snapshot): void {
    const before = this.snapshot;
    this.snapshot = snapshot;
    this.failures = 0;
    if (before && restarted(before, snapshot)) this.history = [];
    else if (before) {
      const oldest = snapshot.now - HISTORY_SECONDS;
      this.history = this.history.filter((s) => s.now >= oldest);
      this.history.push(sample(before, snapshot));
    }
    this.become({ state: "live" });
  }

  private lose(why: string): void {
    this.failures += 1;
    // Half of the wait is random, so that many pages do not come back in one moment.
    const longest = Math.min(LONGEST_WAIT_MS, 500 * 2 ** this.failures);
    const wait = longest * (0.5 + 0.5 * Math.random());
    this.become({ state: "lost", why, retryAt: Date.now() + wait });
    this.retry = setTimeout(() => this.connect(), wait);
  }

  private become(link: Link): void {
    this.link = link;
    for (const listener of this.listeners) listener();
  }
}
